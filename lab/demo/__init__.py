"""`ftnode demo`, its report and its pictures, and replays."""
