"""The contract as Hypothesis properties: strategies, clauses, and how a subject is tried on them."""
