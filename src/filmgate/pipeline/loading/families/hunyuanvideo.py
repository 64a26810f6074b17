"""HunyuanVideo."""

from filmgate.models.families import HUNYUANVIDEO
from filmgate.pipeline.loading.families.base import Family, Pipeline


class HunyuanVideo(Family):
    """HunyuanVideo from text, and its image model, whose text encoder reads the image with the prompt."""

    facts = HUNYUANVIDEO
    embeddings = ("prompt_embeds", "pooled_prompt_embeds", "prompt_attention_mask")
    fps = 24

    def encodes_prompt_with_image(self, pipe: Pipeline) -> bool:
        return self.needs_image(pipe)

    def extra_frames(self, pipe: Pipeline) -> int:
        """With `latent_concat` the first latent frame repeats the image, and the pipeline drops it."""
        repeats_image = pipe.transformer.config.image_condition_type == "latent_concat"
        return self.compression(pipe).temporal if repeats_image else 0
