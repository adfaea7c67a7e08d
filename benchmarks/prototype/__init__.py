"""What going below librdkafka would give: record batches off the wire, cut into Arrow columns natively. A prototype.

Nothing installed uses it; docs/performance.md, "Under librdkafka's cost", tells what it is for and what it lacks.
"""
