"""Language-model providers: text in, text out, the provider's own token counts with it.

kmem/default_plugins/providers.py registers them. What a run may spend on them is
kmem/explore/models/cost/budget.py's.

- keys.py: where an API key comes from, and how it is kept out of every message.
- retry.py: when to ask again, and how long to wait before.
- answer.py: an answer while its stream is read.
- http.py: what the two vendor SDKs share: clients, deadlines, one line per failure.
- openai.py: OpenAI, and every server that speaks its chat completions.
- anthropic.py: Anthropic, and every relay that speaks its Messages API.
- command.py: any program that reads a prompt and prints an answer.
- recorded.py: recorded conversations in place of a model (the provider named `replay`).
"""
