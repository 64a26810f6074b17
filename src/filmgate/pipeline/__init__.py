"""Room 5: text -> denoise -> decode -> transfer -> encode. Only this package imports torch and av."""
