"""Station 6: text -> denoise -> decode -> transfer -> encode. torch and av live under this package alone."""
