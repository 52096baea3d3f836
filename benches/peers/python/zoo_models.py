"""The models of `benches/zoo/` in PyTorch: the same sizes and inputs, random weights, from torchvision, timm, transformers and diffusers.

Nothing is downloaded. diffusers is needed for the two diffusion models only. What differs from candle-transformers' models:

- GELU is exact here; candle-transformers has tanh's approximation in Whisper, Hiera, DistilBERT and others.
- ModernBERT's first layer has no norm before its attention here.
- VGG-16 ends with a ReLU in candle. ViT's last norm is of all tokens here, of one in candle.
- EVA-2, DINOv2, BEiT and ViT have the code of timm, which computes BEiT's relative positions in each call, as candle does.
- Nothing is padded, so there are no masks where candle adds a mask of zeros. Decoders are causal. ModernBERT has the mask of its window.
- Steps of diffusion are on the device before the call.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

# Tokens of a sentence, and of a prompt for images.
LENGTH = 128
PROMPT = 77
CLASSES = 1000
STEP = 500.0


@dataclass(frozen=True)
class Target:
    """The device, dtype and batch of a model."""

    device: torch.device
    dtype: torch.dtype
    batch: int

    def noise(self, *shape: int) -> torch.Tensor:
        generator = torch.Generator(self.device).manual_seed(0)
        return torch.randn(self.batch, *shape, device=self.device, generator=generator).to(self.dtype)

    def image(self, size: int) -> torch.Tensor:
        return self.noise(3, size, size)

    def tokens(self, length: int, vocabulary: int) -> torch.Tensor:
        ids = (torch.arange(self.batch * length) * 7919 + 101) % vocabulary
        return ids.view(self.batch, length).to(self.device)


class Forward(torch.nn.Module):
    """A model as a function of a tuple of tensors."""

    def __init__(self, model: torch.nn.Module, call: Callable = lambda model, x: model(x)):
        super().__init__()
        self.model, self.call = model, call

    def forward(self, inputs: tuple[torch.Tensor, ...]):
        return self.call(self.model, *inputs)


Made = tuple[Forward, tuple[torch.Tensor, ...]]


def torchvision(name: str, image: torch.Tensor) -> Made:
    import torchvision

    return Forward(torchvision.models.get_model(name, weights=None)), (image,)


def timm(name: str, image: torch.Tensor, *, is_folded: bool = False) -> Made:
    """A model of timm; with its branches folded into one convolution, as its weights are published for inference, if `is_folded`."""
    import timm
    from timm.utils.model import reparameterize_model

    model = timm.create_model(name, pretrained=False)
    return Forward(reparameterize_model(model) if is_folded else model), (image,)


class Dinov2(torch.nn.Module):
    """DINOv2 with the linear head of its authors, which reads the class token and the mean of the others."""

    def __init__(self, backbone: str):
        import timm

        super().__init__()
        self.backbone = timm.create_model(backbone, pretrained=False)
        self.head = torch.nn.Linear(2 * self.backbone.embed_dim, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.backbone.forward_features(x)
        prefix = self.backbone.num_prefix_tokens
        return self.head(torch.cat([tokens[:, 0], tokens[:, prefix:].mean(1)], -1))


def transformers():
    """Imports transformers and turns masks off. Otherwise it masks nothing at a cost when captured: models.without_masks says why."""
    import models

    return models.without_masks()


def hidden(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return model(input_ids=tokens).last_hidden_state


def encoder(model: str, tokens: torch.Tensor, *, pooler: bool | None = None, attention: str = "sdpa", **config) -> Made:
    """An encoder of text, by its type in transformers. `pooler` is given if the class can leave its pooler out."""
    of = transformers()
    described = of.AutoConfig.for_model(model, attn_implementation=attention, **config)
    options = {} if pooler is None else {"add_pooling_layer": pooler}
    return Forward(of.AutoModel.from_config(described, **options), hidden), (tokens,)


def modernbert(at: Target, **config) -> Made:
    of = transformers()
    config = of.ModernBertConfig(attn_implementation="sdpa", **config)
    position = torch.arange(LENGTH)
    far = (position[:, None] - position[None, :]).abs() > config.local_attention // 2
    # Added to scores, since PyTorch makes this of a mask of bools in each layer.
    window = torch.zeros(1, 1, LENGTH, LENGTH, device=at.device).masked_fill(far.to(at.device), float("-inf")).to(at.dtype)
    window = window.expand(at.batch, 1, LENGTH, LENGTH).contiguous()
    masks = {"full_attention": None, "sliding_attention": window}
    model = of.ModernBertModel(config)
    call = lambda model, tokens: model(input_ids=tokens, attention_mask=masks).last_hidden_state
    return Forward(model, call), (at.tokens(LENGTH, config.vocab_size),)


T5_SMALL = {"d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 8}
FLAN_T5 = {"d_model": 768, "d_kv": 64, "d_ff": 2048, "num_layers": 12, "num_heads": 12, "feed_forward_proj": "gated-gelu"}


def t5_encoder(at: Target, **config) -> Made:
    of = transformers()
    config = of.T5Config(attn_implementation="sdpa", **(config or T5_SMALL))
    model = of.T5EncoderModel(config)
    # Fused attention needs a contiguous bias.
    attention = model.encoder.block[0].layer[0].SelfAttention
    bias = attention.compute_bias
    attention.compute_bias = lambda *args, **kwargs: bias(*args, **kwargs).contiguous()
    return Forward(model, hidden), (at.tokens(LENGTH, config.vocab_size),)


def decoder(at: Target, model: str, **config) -> Made:
    """A decoder without a cache of earlier tokens. Computes the logits of the last token only, as candle's does."""
    of = transformers()
    described = of.AutoConfig.for_model(model, **{"tie_word_embeddings": True, "attn_implementation": "sdpa"} | config)
    call = lambda model, tokens: model(input_ids=tokens, use_cache=False, logits_to_keep=1).logits
    return Forward(of.AutoModelForCausalLM.from_config(described), call), (at.tokens(LENGTH, described.vocab_size),)


def whisper(at: Target, *, whole: bool, width: int = 384, layers: int = 4, heads: int = 6) -> Made:
    """The encoder of 30 seconds of sound; with the decoder of 32 tokens and all their logits if `whole`."""
    of = transformers()
    config = of.WhisperConfig(
        d_model=width, encoder_layers=layers, decoder_layers=layers, encoder_attention_heads=heads, decoder_attention_heads=heads,
        encoder_ffn_dim=4 * width, decoder_ffn_dim=4 * width, attn_implementation="sdpa",
    )  # fmt: skip
    model, sound = of.WhisperForConditionalGeneration(config), at.noise(80, 3000)
    if not whole:
        return Forward(model.get_encoder(), lambda model, sound: model(sound).last_hidden_state), (sound,)
    call = lambda model, sound, tokens: model(sound, decoder_input_ids=tokens, use_cache=False).logits
    return Forward(model, call), (sound, at.tokens(32, 51865))


def clip_vision(at: Target, **config) -> Made:
    of = transformers()
    model = of.CLIPVisionModel(of.CLIPVisionConfig(attn_implementation="sdpa", **config))
    return Forward(model, lambda model, image: model(image).pooler_output), (at.image(224),)


def clip_text(at: Target) -> Made:
    of = transformers()
    config = of.CLIPTextConfig(
        hidden_size=768, intermediate_size=3072, num_attention_heads=12, projection_dim=768, attn_implementation="sdpa",
    )  # fmt: skip
    call = lambda model, tokens: model(input_ids=tokens).pooler_output
    return Forward(of.CLIPTextModel(config), call), (at.tokens(77, 49408),)


def siglip(at: Target) -> Made:
    of = transformers()
    model = of.SiglipModel(of.SiglipConfig(attn_implementation="sdpa"))

    def call(model, image, tokens):
        answer = model(input_ids=tokens, pixel_values=image)
        return answer.logits_per_text, answer.logits_per_image

    return Forward(model, call), (at.image(224), at.tokens(64, 32000))


def segformer(at: Target, **config) -> Made:
    of = transformers()
    b0 = {"depths": [2, 2, 2, 2], "hidden_sizes": [32, 64, 160, 256], "decoder_hidden_size": 256}
    config = of.SegformerConfig(
        sr_ratios=[8, 4, 2, 1], patch_sizes=[7, 3, 3, 3], strides=[4, 2, 2, 2], num_attention_heads=[1, 2, 5, 8],
        mlp_ratios=[4, 4, 4, 4], num_labels=150, **(config or b0),
    )  # fmt: skip
    model = of.SegformerForSemanticSegmentation(config)
    return Forward(model, lambda model, image: model(image).logits), (at.image(512),)


def dac(at: Target) -> Made:
    """The decoder of a second of sound in nine codes."""
    of = transformers()
    model = of.DacModel(of.DacConfig())
    codes = at.tokens(9 * 86, 1024).view(at.batch, 9, 86)
    return Forward(model, lambda model, codes: model.decode(audio_codes=codes).audio_values), (codes,)


def unet(at: Target, latent: int) -> Made:
    import diffusers

    model = diffusers.UNet2DConditionModel(sample_size=latent, cross_attention_dim=768)
    # A buffer would take the model's dtype.
    step = torch.full((at.batch,), STEP, device=at.device)
    call = lambda model, noise, prompt: model(noise, step, prompt, return_dict=False)[0]
    return Forward(model, call), (at.noise(4, latent, latent), at.noise(PROMPT, 768))


def vae_decoder(at: Target, latent: int) -> Made:
    import diffusers

    model = diffusers.AutoencoderKL(
        block_out_channels=(128, 256, 512, 512), layers_per_block=2, latent_channels=4, sample_size=8 * latent,
        down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
    )  # fmt: skip
    return Forward(model, lambda model, noise: model.decode(noise, return_dict=False)[0]), (at.noise(4, latent, latent),)


XLM = {"vocab_size": 250002, "max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
SMOLLM2 = {
    "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "rms_norm_eps": 1e-5, "max_position_embeddings": 8192,
}  # fmt: skip
QWEN2 = {
    "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
    "num_attention_heads": 14, "num_key_value_heads": 2,
}  # fmt: skip
QWEN3 = {
    "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
}  # fmt: skip

LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
ROBERTA = XLM | {"vocab_size": 50265}
DEBERTA = {
    "vocab_size": 128100, "hidden_size": 768, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 3072,
    "relative_attention": True, "position_buckets": 256, "norm_rel_ebd": "layer_norm", "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"], "position_biased_input": False, "type_vocab_size": 0, "max_relative_positions": -1,
}  # fmt: skip
OLMO2 = {
    "vocab_size": 100352, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 16,
    "tie_word_embeddings": False,
}  # fmt: skip
STARCODER2 = {
    "vocab_size": 49152, "hidden_size": 3072, "intermediate_size": 12288, "num_hidden_layers": 30, "num_attention_heads": 24,
    "num_key_value_heads": 2,
}  # fmt: skip
# Its scores are capped, so that it has no fused attention but what a compiler makes.
GEMMA2 = {
    "vocab_size": 256000, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 256, "attn_implementation": "eager",
}  # fmt: skip
QWEN2_1 = {
    "vocab_size": 151936, "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
    "num_attention_heads": 12, "num_key_value_heads": 2,
}  # fmt: skip
GEMMA = {
    "vocab_size": 256000, "hidden_size": 2048, "intermediate_size": 16384, "num_hidden_layers": 18, "num_attention_heads": 8,
    "num_key_value_heads": 1, "head_dim": 256,
}  # fmt: skip
PHI3 = {
    "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 32, "tie_word_embeddings": False, "pad_token_id": 0,
}  # fmt: skip
SEGFORMER_B3 = {"depths": [3, 4, 18, 3], "hidden_sizes": [64, 128, 320, 512], "decoder_hidden_size": 768}

# By the names of benches/zoo/.
MODELS: dict[str, Callable[[Target], Made]] = {
    "resnet18": lambda at: torchvision("resnet18", at.image(224)),
    "resnet34": lambda at: torchvision("resnet34", at.image(224)),
    "resnet50": lambda at: torchvision("resnet50", at.image(224)),
    "vgg16": lambda at: torchvision("vgg16", at.image(224)),
    "convnext-tiny": lambda at: timm("convnext_tiny", at.image(224)),
    "mobilenetv4-small": lambda at: timm("mobilenetv4_conv_small", at.image(224)),
    "efficientnet-b0": lambda at: torchvision("efficientnet_b0", at.image(224)),
    "vit-base": lambda at: timm("vit_base_patch16_224", at.image(224)),
    "beit-base": lambda at: timm("beit_base_patch16_384", at.image(384)),
    "dinov2-small": lambda at: (Forward(Dinov2("vit_small_patch14_dinov2")), (at.image(518),)),
    "dinov2-large": lambda at: (Forward(Dinov2("vit_large_patch14_dinov2")), (at.image(518),)),
    "eva2-base": lambda at: timm("eva02_base_patch14_448", at.image(448)),
    "hiera-tiny": lambda at: timm("hiera_tiny_224", at.image(224)),
    "bert-base": lambda at: encoder("bert", at.tokens(LENGTH, 30522), pooler=False),
    "modernbert-base": modernbert,
    "whisper-tiny-encoder": lambda at: whisper(at, whole=False),
    "qwen2-0.5b": lambda at: decoder(at, "qwen2", **QWEN2),
    "sd-1.5-unet": lambda at: unet(at, 32),
    "sd-1.5-unet-64": lambda at: unet(at, 64),
    "sd-1.5-vae-decoder": lambda at: vae_decoder(at, 32),
    "sd-1.5-vae-decoder-64": lambda at: vae_decoder(at, 64),
    "clip-vit-b32-vision": clip_vision,
    "siglip-base": siglip,
    "segformer-b0": segformer,
    "t5-small-encoder": t5_encoder,
    "dac-44khz-decoder": dac,
    "distilbert": lambda at: encoder("distilbert", at.tokens(LENGTH, 30522)),
    "smollm2-135m": lambda at: decoder(at, "llama", **SMOLLM2),
    "qwen3-0.6b": lambda at: decoder(at, "qwen3", **QWEN3),
    "xlm-roberta-base": lambda at: encoder("xlm-roberta", at.tokens(LENGTH, 250002), pooler=False, **XLM),
    "whisper-tiny": lambda at: whisper(at, whole=True),
    # The first list of benches/zoo/.
    "resnet101": lambda at: torchvision("resnet101", at.image(224)),
    "vgg19": lambda at: torchvision("vgg19", at.image(224)),
    "efficientnet-b3": lambda at: torchvision("efficientnet_b3", at.image(300)),
    "convnext-base": lambda at: timm("convnext_base", at.image(224)),
    "convnextv2-pico": lambda at: timm("convnextv2_pico", at.image(224)),
    "dinov2-base": lambda at: (Forward(Dinov2("vit_base_patch14_dinov2")), (at.image(518),)),
    "vit-large": lambda at: timm("vit_large_patch16_224", at.image(224)),
    "hiera-base": lambda at: timm("hiera_base_224", at.image(224)),
    "mobilenetv4-medium": lambda at: timm("mobilenetv4_conv_medium", at.image(256)),
    "segformer-b3": lambda at: segformer(at, **SEGFORMER_B3),
    "clip-vit-l14-vision": lambda at: clip_vision(at, patch_size=14, **LARGE),
    "bert-large": lambda at: encoder("bert", at.tokens(LENGTH, 30522), pooler=False, **LARGE),
    "roberta-large": lambda at: encoder("roberta", at.tokens(LENGTH, 50265), pooler=False, **LARGE, **ROBERTA),
    "deberta-v3-small": lambda at: encoder("deberta-v2", at.tokens(LENGTH, 128100), attention="eager", **DEBERTA),
    "modernbert-large": lambda at: modernbert(at, **LARGE | {"num_hidden_layers": 28, "intermediate_size": 2624}),
    "flan-t5-base-encoder": lambda at: t5_encoder(at, **FLAN_T5),
    "whisper-base-encoder": lambda at: whisper(at, whole=False, width=512, layers=6, heads=8),
    "olmo2-1b": lambda at: decoder(at, "olmo2", **OLMO2),
    "starcoder2-3b": lambda at: decoder(at, "starcoder2", **STARCODER2),
    "gemma2-2b": lambda at: decoder(at, "gemma2", **GEMMA2),
    # The second list.
    "resnet152": lambda at: torchvision("resnet152", at.image(224)),
    "vgg13": lambda at: torchvision("vgg13", at.image(224)),
    "efficientnet-b4": lambda at: torchvision("efficientnet_b4", at.image(380)),
    "convnext-small": lambda at: timm("convnext_small", at.image(224)),
    "convnextv2-nano": lambda at: timm("convnextv2_nano", at.image(224)),
    "efficientvit-m5": lambda at: timm("efficientvit_m5", at.image(224)),
    "repvgg-b1": lambda at: timm("repvgg_b1", at.image(224), is_folded=True),
    "mobileone-s1": lambda at: timm("mobileone_s1", at.image(224), is_folded=True),
    "fastvit-sa12": lambda at: timm("fastvit_sa12", at.image(256), is_folded=True),
    "eva2-large": lambda at: timm("eva02_large_patch14_448", at.image(448)),
    "dinov2-reg4-base": lambda at: (Forward(Dinov2("vit_base_patch14_reg4_dinov2")), (at.image(518),)),
    "hiera-small": lambda at: timm("hiera_small_224", at.image(224)),
    "mobilenetv4-large": lambda at: timm("mobilenetv4_conv_large", at.image(384)),
    "segformer-b1": lambda at: segformer(at, **SEGFORMER_B3 | {"depths": [2, 2, 2, 2], "decoder_hidden_size": 256}),
    "beit-large": lambda at: timm("beit_large_patch16_384", at.image(384)),
    "clip-vit-l14-text": clip_text,
    "t5-large-encoder": lambda at: t5_encoder(at, d_model=1024, d_kv=64, d_ff=4096, num_layers=24, num_heads=16),
    "qwen2.5-1.5b": lambda at: decoder(at, "qwen2", **QWEN2_1),
    "gemma-2b": lambda at: decoder(at, "gemma", **GEMMA),
    "phi-3-mini": lambda at: decoder(at, "phi3", **PHI3),
}


def build(model: str, at: Target) -> Made:
    """A model in evaluation mode on the device, and its inputs."""
    torch.manual_seed(0)
    with torch.device(at.device):
        module, inputs = MODELS[model](at)
    return module.eval().requires_grad_(False).to(at.device, at.dtype), inputs
