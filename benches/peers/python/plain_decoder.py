"""A decoder of few lines for torch.compile, as gpt-fast has it: one product for queries, keys and values, one for gate and up, and a
static cache that positions index."""

import torch
import torch.nn.functional as F
from torch import nn


class Layer(nn.Module):
    def __init__(self, of, config, batch: int, context: int):
        super().__init__()
        attention, mlp = of.self_attn, of.mlp
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.dim = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        parts = (attention.q_proj, attention.k_proj, attention.v_proj)
        self.qkv = torch.cat([part.weight for part in parts])
        has_bias = parts[0].bias is not None
        self.qkv_bias = torch.cat([part.bias for part in parts]) if has_bias else None
        self.output, self.down = attention.o_proj, mlp.down_proj
        self.gate_up = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])
        self.attention_norm, self.mlp_norm = of.input_layernorm, of.post_attention_layernorm
        cache = torch.zeros(2, batch, self.kv_heads, context, self.dim, dtype=self.qkv.dtype, device=self.qkv.device)
        self.register_buffer("cache", cache)

    def forward(self, x, positions, mask, cos, sin):
        batch, tokens, _ = x.shape
        qkv = F.linear(self.attention_norm(x), self.qkv, self.qkv_bias).view(batch, tokens, -1, self.dim).transpose(1, 2)
        q, k, v = qkv.split([self.heads, self.kv_heads, self.kv_heads], 1)
        q, k = (turned(part, cos, sin) for part in (q, k))
        self.cache[0].index_copy_(2, positions, k)
        self.cache[1].index_copy_(2, positions, v)
        y = F.scaled_dot_product_attention(q, self.cache[0], self.cache[1], attn_mask=mask, enable_gqa=self.heads != self.kv_heads)
        x = x + self.output(y.transpose(1, 2).reshape(batch, tokens, -1))
        gate, up = F.linear(self.mlp_norm(x), self.gate_up).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


def turned(x, cos, sin):
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat([-right, left], -1) * sin


class Decoder(nn.Module):
    def __init__(self, model, batch: int, context: int):
        super().__init__()
        config, body = model.config, model.model
        self.table, self.norm, self.head = body.embed_tokens, body.norm, model.lm_head
        self.layers = nn.ModuleList(Layer(layer, config, batch, context) for layer in body.layers)
        device, dtype = self.table.weight.device, self.table.weight.dtype
        cos, sin = body.rotary_emb(torch.zeros(1, dtype=dtype, device=device), torch.arange(context, device=device)[None])
        self.register_buffer("cos", cos[0])
        self.register_buffer("sin", sin[0])
        self.register_buffer("is_before", torch.ones(context, context, dtype=torch.bool, device=device).tril())

    def forward(self, ids, positions):
        x, mask = self.table(ids), self.is_before[positions]
        for layer in self.layers:
            x = layer(x, positions, mask, self.cos[positions], self.sin[positions])
        return self.head(self.norm(x[:, -1:]))


def of(model, batch: int, context: int) -> Decoder:
    """The decoder with the weights of transformers' Llama, Mistral, Qwen2 or a model of the same parts."""
    first = model.model.layers[0]
    if not hasattr(first.self_attn, "q_proj") or hasattr(first.self_attn, "q_norm") or hasattr(first, "pre_feedforward_layernorm"):
        raise ValueError("the plain decoder has no norms of heads, packed products or norms behind products")
    return Decoder(model, batch, context)
