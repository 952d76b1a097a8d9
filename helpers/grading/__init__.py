"""Judging answers: `check` and `hint`, and the suites of questions behind them."""
