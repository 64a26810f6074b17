"""Package 5 on the request path: text -> denoise -> decode -> transfer -> encode.

Only this package imports torch and av.
"""
