"""Language-model providers: text in, text out, the provider's own token counts with it.

In order: keys.py (where an API key comes from, and keeping it out of every message), retry.py (when
and how long to wait before asking again), http.py (what the two vendor SDKs share: clients,
deadlines, one line per failure), openai.py (OpenAI and every server that speaks its chat
completions), anthropic.py, command.py (any program that reads a prompt and prints an answer),
replay.py (recorded conversations). kmem/default_plugins/providers.py registers them. What a run may
spend on them is kmem/explore/models/cost/budget.py's.
"""
