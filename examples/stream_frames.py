"""Prints the mean brightness of each frame while the GPU decodes the next ones.

python examples/stream_frames.py MODEL "a red ball bounces"
"""

import sys

from diffusers import DiffusionPipeline

import filmgate

if len(sys.argv) != 3:
    sys.exit(__doc__)
model, prompt = sys.argv[1:]
pipe = DiffusionPipeline.from_pretrained(model)
latents = pipe(prompt, height=64, width=64, num_frames=9, num_inference_steps=4, output_type="latent").frames
for chunk in filmgate.stream_frames(pipe.vae, latents):
    for frame in chunk:
        print(f"{frame.mean():.1f}")
