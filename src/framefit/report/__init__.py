"""What people see of plans and runs: tables, pictures and Perfetto traces, made from ``core`` objects only."""
