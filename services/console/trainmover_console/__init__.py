"""What people use: the command line, live views, reports, the dashboard, the doctor."""
