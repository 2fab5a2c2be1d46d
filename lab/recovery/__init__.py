"""`ftnode lab recovery`: what each way to answer a lost stage is worth."""
