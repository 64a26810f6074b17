"""Writes the latents of a diffusers video pipeline to an MP4; decode, copy and encode overlap.

python examples/save_video.py MODEL "a red ball bounces"
"""

import sys

from diffusers import DiffusionPipeline

import filmgate

if len(sys.argv) != 3:
    sys.exit(__doc__)
model, prompt = sys.argv[1:]
pipe = DiffusionPipeline.from_pretrained(model)
latents = pipe(prompt, height=64, width=64, num_frames=9, num_inference_steps=4, output_type="latent").frames
print(filmgate.save_video(pipe.vae, latents, "clip.mp4", fps=16))
