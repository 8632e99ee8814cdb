"""A tagger with a bidirectional LSTM of two layers over embedded tokens, in fp32."""

import torch

BATCH = 32
LENGTH = 256
WORDS = 30000
WIDTH = 256
HIDDEN = 512
TAGS = 50


class Model(torch.nn.Module):
    def __init__(self, words, width, hidden, tags):
        super().__init__()
        self.embed = torch.nn.Embedding(words, width)
        self.lstm = torch.nn.LSTM(width, hidden, 2, batch_first=True, bidirectional=True)
        self.norm = torch.nn.LayerNorm(2 * hidden)
        self.head = torch.nn.Linear(2 * hidden, tags)
        self.eval()

    def forward(self, tokens):
        y, _ = self.lstm(self.embed(tokens))
        return torch.log_softmax(self.head(self.norm(y)), dim=-1)


def get_inputs():
    return [torch.randint(0, WORDS, (BATCH, LENGTH))]


def get_init_inputs():
    return [WORDS, WIDTH, HIDDEN, TAGS]
