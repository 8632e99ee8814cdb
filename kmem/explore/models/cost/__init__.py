"""What questions to language models cost, and the budget that holds.

- prices.py: what models cost: the shipped table (prices.json) and the user's own.
- usage.py: what each role has used of each model.
- budget.py: the budget of a run: reserve the worst, ask, settle with what was counted.
"""
