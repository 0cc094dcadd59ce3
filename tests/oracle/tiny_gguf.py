"""tiny_gguf.py - a GGUF file of tests/help/tiny.c as a transformers model, by our own inverse of the conversion.

What a converter does to a checkpoint is written down in doc/formats.md; here each step is undone:
  llama    rows of q and k: adjacent pairs back to split halves; rope_freqs.weight becomes the llama3 scaling that made it
  qwen35   norms -1 (except ssm_norm), value heads tiled -> grouped by key head, ssm_a -> A_log, conv kernel gets its middle dimension
  mixtures gate and up of all experts become one tensor, gate first
"""
import numpy as np
import torch
import transformers as T
import gguf


class File:
    """Keys and tensors (dequantised, float32, rows outermost) of a GGUF file."""

    def __init__(self, path):
        r = gguf.GGUFReader(path)
        self.path = str(path)
        self.keys = {f.name: f.contents() for f in r.fields.values()}
        self.tensors = {}
        for t in r.tensors:
            shape = [int(n) for n in reversed(t.shape)]
            whole = t.tensor_type == gguf.GGMLQuantizationType.I32
            data = t.data if whole else gguf.quants.dequantize(t.data, t.tensor_type)
            self.tensors[t.name] = data.astype(np.float32).reshape(shape)
        self.arch = self.keys["general.architecture"]

    def key(self, name, default=None):
        return self.keys.get(f"{self.arch}.{name}", default)


def untile(x, k_heads, v_heads, width, axis=0):
    """Reorders value heads from the file's order (head m belongs to key head m % k_heads) to the checkpoint's (m //
    ratio)."""
    x = np.moveaxis(x, axis, 0)
    x = x.reshape(v_heads // k_heads, k_heads, width, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)
    return np.moveaxis(x, 0, axis)


def split_halves(w, n_head):
    """Reorders rows (or biases) of q or k from adjacent pairs to split halves, head by head."""
    shape = w.shape
    return w.reshape(n_head, shape[0] // n_head // 2, 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def common(f):
    kv = f.key("attention.head_count_kv")
    return dict(vocab_size=f.tensors["token_embd.weight"].shape[0], hidden_size=f.key("embedding_length"),
                intermediate_size=f.key("feed_forward_length", 0),
                num_hidden_layers=f.key("block_count") - f.key("nextn_predict_layers", 0),
                num_attention_heads=f.key("attention.head_count"),
                num_key_value_heads=max(kv) if isinstance(kv, list) else kv,
                head_dim=f.key("attention.key_length"), max_position_embeddings=f.key("context_length"),
                rms_norm_eps=f.key("attention.layer_norm_rms_epsilon"),
                tie_word_embeddings="output.weight" not in f.tensors,
                bos_token_id=None, eos_token_id=None, pad_token_id=None)


def build_llama(f):
    rope = {"rope_type": "default", "rope_theta": f.key("rope.freq_base")}
    if "rope_freqs.weight" in f.tensors:           # the scaling that tests/help/tiny.c applies
        rope |= {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                 "original_max_position_embeddings": 64}
    biased, ffn_biased = "blk.0.attn_q.bias" in f.tensors, "blk.0.ffn_gate.bias" in f.tensors
    c = common(f)
    model = T.LlamaForCausalLM(T.LlamaConfig(**c, rope_parameters=rope, attention_bias=biased, mlp_bias=ffn_biased))

    def weight(name, x):
        if name in ("attn_q.weight", "attn_q.bias"):
            return split_halves(x, c["num_attention_heads"])
        return split_halves(x, c["num_key_value_heads"]) if name in ("attn_k.weight", "attn_k.bias") else x
    return model, weight


def build_qwen3(f):
    rope = {"rope_type": "default", "rope_theta": f.key("rope.freq_base")}
    return T.Qwen3ForCausalLM(T.Qwen3Config(**common(f), rope_parameters=rope)), lambda name, x: x


def experts(f):
    return dict(num_experts=f.key("expert_count"), num_experts_per_tok=f.key("expert_used_count"),
                moe_intermediate_size=f.key("expert_feed_forward_length"))


def build_qwen3moe(f):
    rope = {"rope_type": "default", "rope_theta": f.key("rope.freq_base")}
    config = T.Qwen3MoeConfig(**common(f), **experts(f), rope_parameters=rope, norm_topk_prob=True)
    return T.Qwen3MoeForCausalLM(config), lambda name, x: x


def build_qwen35(f):
    c = common(f)
    hk, hv, width = f.key("ssm.group_count"), f.key("ssm.time_step_rank"), f.key("ssm.state_size")
    n_rot, every = f.key("rope.dimension_count"), f.key("full_attention_interval")
    pairs = n_rot // 2
    rope = {"rope_type": "default", "rope_theta": f.key("rope.freq_base"),
            "partial_rotary_factor": n_rot / c["head_dim"],
            "mrope_section": [(pairs + 2) // 3, (pairs + 1) // 3, pairs // 3], "mrope_interleaved": True}
    kinds = ["full_attention" if (i + 1) % every == 0 else "linear_attention" for i in range(c["num_hidden_layers"])]
    c |= dict(rope_parameters=rope, layer_types=kinds, linear_num_key_heads=hk, linear_num_value_heads=hv,
              linear_key_head_dim=width, linear_value_head_dim=width, linear_conv_kernel_dim=f.key("ssm.conv_kernel"))
    if f.arch == "qwen35moe":
        shared = f.key("expert_shared_feed_forward_length")
        config = T.Qwen3_5MoeTextConfig(**c, **experts(f), shared_expert_intermediate_size=shared)
        model = T.Qwen3_5MoeForCausalLM(config)
    else:
        model = T.Qwen3_5ForCausalLM(T.Qwen3_5TextConfig(**c))
    grouped = f.key("ssm.v_head_reordered", True) is False
    keys = 2 * hk * width

    def heads(x, w, axis=0):
        return x if grouped else untile(x, hk, hv, w, axis)

    def weight(name, x):
        if name.endswith("norm.weight") and name != "ssm_norm.weight":
            return x - np.float32(1)
        if name == "attn_qkv.weight":
            return np.concatenate([x[:keys], heads(x[keys:], width)])
        if name == "ssm_conv1d.weight":
            return np.concatenate([x[:keys], heads(x[keys:], width)])[:, None, :]
        if name == "attn_gate.weight":
            return heads(x, width)
        if name == "ssm_a":
            return np.log(-heads(x, 1).astype(np.float64)).astype(np.float32)
        if name in ("ssm_beta.weight", "ssm_alpha.weight", "ssm_dt.bias", "ssm_dt"):
            return heads(x, 1)
        if name == "ffn_gate_inp_shexp.weight":
            return x.reshape(1, -1)
        return heads(x, width, 1) if name == "ssm_out.weight" else x
    return model, weight


def build_laguna(f):
    c = common(f)
    n, heads, window = c["num_hidden_layers"], f.key("attention.head_count"), f.key("attention.sliding_window", 0)
    heads = heads if isinstance(heads, list) else [heads] * n
    c["num_attention_heads"] = heads[0]
    yarn = {"rope_type": "yarn", "rope_theta": f.key("rope.freq_base"), "factor": f.key("rope.scaling.factor"),
            "original_max_position_embeddings": f.key("rope.scaling.original_context_length"),
            "beta_fast": f.key("rope.scaling.yarn_beta_fast", 32), "beta_slow": f.key("rope.scaling.yarn_beta_slow", 1),
            "partial_rotary_factor": f.key("rope.dimension_count") / c["head_dim"]}
    plain = {"rope_type": "default", "rope_theta": f.key("rope.freq_base_swa", 1e4)}
    each = f.tensors["blk.0.attn_gate.weight"].shape[0] != heads[0]
    dense = f.key("leading_dense_block_count")
    return T.LagunaForCausalLM(T.LagunaConfig(
        **c, **experts(f), rope_parameters={"full_attention": yarn, "sliding_attention": plain},
        layer_types=["sliding_attention" if window and i % 4 else "full_attention" for i in range(n)],
        sliding_window=window or 512, num_attention_heads_per_layer=heads, gating="per-element" if each else "per-head",
        mlp_layer_types=["dense"] * dense + ["sparse"] * (n - dense),
        shared_expert_intermediate_size=f.key("expert_shared_feed_forward_length"),
        moe_routed_scaling_factor=f.key("expert_weights_scale"))), lambda name, x: x


def build_gemma4(f):
    c = common(f)
    n, near, kv = c["num_hidden_layers"], f.key("attention.sliding_window_pattern"), f.key("attention.head_count_kv")
    own = [f"blk.{i}.attn_v.weight" in f.tensors for i in range(n) if not near[i]]
    c["head_dim"] = f.key("attention.key_length_swa")
    c["num_key_value_heads"] = next(k for k, s in zip(kv, near) if s)
    mixture = experts(f) if f.key("expert_count") else {}
    if mixture:
        mixture = dict(enable_moe_block=True, num_experts=mixture["num_experts"],
                       top_k_experts=mixture["num_experts_per_tok"],
                       moe_intermediate_size=mixture["moe_intermediate_size"])
    model = T.Gemma4ForCausalLM(T.Gemma4TextConfig(
        **c, **mixture, layer_types=["sliding_attention" if s else "full_attention" for s in near],
        sliding_window=f.key("attention.sliding_window"), global_head_dim=f.key("attention.key_length"),
        num_global_key_value_heads=next(k for k, s in zip(kv, near) if not s), attention_k_eq_v=not all(own),
        rope_parameters={"sliding_attention": {"rope_type": "default", "rope_theta": f.key("rope.freq_base_swa")},
                         "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25,
                                            "rope_theta": f.key("rope.freq_base")}},
        final_logit_softcapping=f.key("final_logit_softcapping"), hidden_size_per_layer_input=0))
    for i in range(n):                             # a file may leave them out
        f.tensors.setdefault(f"blk.{i}.layer_output_scale.weight", np.ones(1, np.float32))
    return model, lambda name, x: x


BUILD = {"llama": build_llama, "qwen3": build_qwen3, "qwen35": build_qwen35, "qwen3moe": build_qwen3moe,
         "qwen35moe": build_qwen35, "laguna": build_laguna, "gemma4": build_gemma4}
TOP = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
       "output.weight": "lm_head.weight"}
BLOCK = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
         "post_attention_norm": "post_attention_layernorm",
         "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj",
         "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
         "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
         "attn_qkv": "linear_attn.in_proj_qkv", "attn_gate": "linear_attn.in_proj_z",
         "ssm_beta": "linear_attn.in_proj_b",
         "ssm_alpha": "linear_attn.in_proj_a", "ssm_conv1d": "linear_attn.conv1d", "ssm_norm": "linear_attn.norm",
         "ssm_out": "linear_attn.out_proj",
         "ffn_gate_inp": "mlp.gate", "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
         "ffn_gate_shexp": "mlp.shared_expert.gate_proj", "ffn_up_shexp": "mlp.shared_expert.up_proj",
         "ffn_down_shexp": "mlp.shared_expert.down_proj"}
BARE = {"ssm_a": "linear_attn.A_log", "ssm_dt.bias": "linear_attn.dt_bias", "ssm_dt": "linear_attn.dt_bias",
        "ffn_gate_up_exps.weight": "mlp.experts.gate_up_proj", "ffn_down_exps.weight": "mlp.experts.down_proj",
        "exp_probs_b.bias": "mlp.gate.e_score_correction_bias"}
LAGUNA = {"attn_gate": "self_attn.g_proj", "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
          "ffn_up_shexp": "mlp.shared_experts.up_proj", "ffn_down_shexp": "mlp.shared_experts.down_proj"}
GEMMA4 = {"ffn_norm": "pre_feedforward_layernorm", "post_ffw_norm": "post_feedforward_layernorm",
          "post_ffw_norm_1": "post_feedforward_layernorm_1", "post_ffw_norm_2": "post_feedforward_layernorm_2",
          "pre_ffw_norm_2": "pre_feedforward_layernorm_2", "ffn_gate_inp": "router.proj"}
GEMMA4_BARE = {"layer_output_scale.weight": "layer_scalar", "ffn_gate_inp.scale": "router.scale",
               "ffn_down_exps.scale": "router.per_expert_scale", "ffn_gate_up_exps.weight": "experts.gate_up_proj",
               "ffn_down_exps.weight": "experts.down_proj"}


def checkpoint_name(name, n_layer, arch):
    """The checkpoint's name of a tensor; None for tensors that a text model ignores."""
    if name in TOP:
        return TOP[name]
    part = name.split(".", 2)
    if part[0] != "blk" or int(part[1]) >= n_layer:
        return None
    bare = BARE | {"gemma4": GEMMA4_BARE}.get(arch, {})
    if part[2] in bare:
        return f"model.layers.{part[1]}.{bare[part[2]]}"
    stem, suffix = part[2].rsplit(".", 1)
    block = BLOCK | {"laguna": LAGUNA, "gemma4": GEMMA4}.get(arch, {})
    return f"model.layers.{part[1]}.{block[stem]}.{suffix}"


def fuse_experts(tensors):
    """The same tensors, gate and up of each expert in one."""
    out = {}
    for name, x in tensors.items():
        if name.endswith("ffn_gate_exps.weight"):
            up = tensors[name.replace("gate", "up")]
            out[name.replace("gate", "gate_up")] = np.concatenate([x, up], 1)
        elif not name.endswith("ffn_up_exps.weight"):
            out[name] = x
    return out


def load(path):
    """The transformers model of a file: float32, eager attention, every parameter taken from the file."""
    f = File(path)
    model, weight = BUILD[f.arch](f)
    n_layer = model.config.num_hidden_layers
    state = {}
    for name, x in fuse_experts(f.tensors).items():
        to = checkpoint_name(name, n_layer, f.arch)
        if to is None:
            continue
        state[to] = torch.from_numpy(np.array(weight(name.split(".", 2)[2] if name.startswith("blk.") else name, x),
                                              np.float32))
    if model.config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, strict=True)
    model = model.float().eval()
    model.set_attn_implementation("eager")
    if f.key("expert_count"):
        model.set_experts_implementation("eager")
    return model, f


@torch.no_grad()
def run(model, ids):
    """Logits [n, vocab] of a token list, and the taps: {i: [n, hidden]} after layer i, n_layer after the output norm."""
    taps, hooks = {}, []

    def keep(i):
        return lambda module, args, out: taps.__setitem__(i,
                                                          (out[0] if isinstance(out, tuple) else out)[0].numpy().copy())
    for i, layer in enumerate(model.model.layers):
        hooks.append(layer.register_forward_hook(keep(i)))
    hooks.append(model.model.norm.register_forward_hook(keep(len(model.model.layers))))
    logits = model(torch.tensor(ids, dtype=torch.long)[None], use_cache=False).logits[0].numpy().copy()
    for h in hooks:
        h.remove()
    return logits, taps
