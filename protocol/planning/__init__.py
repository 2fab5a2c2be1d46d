"""Who should hold what: what a layout gives, what a change of it costs, and which one to choose."""
