"""What operators see: metrics, dashboard, explanation and profiles."""
