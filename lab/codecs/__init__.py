"""The contest of codecs: steps to a loss, times seconds of a step."""
