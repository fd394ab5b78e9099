"""DeepSeek-V4-Flash's published configuration, without its weights."""

import json


def write_v4_flash_config(folder):
    """A ``config.json`` that SGLang takes for the model's."""
    config = {
        "architectures": ["DeepseekV4ForCausalLM"],
        "model_type": "deepseek_v4",
        "vocab_size": 129280,
        "hidden_size": 4096,
        "num_hidden_layers": 43,
        "num_attention_heads": 64,
        "num_key_value_heads": 1,
        "head_dim": 512,
        "qk_rope_head_dim": 64,
        "q_lora_rank": 1024,
        "index_head_dim": 128,
        "index_n_heads": 64,
        "index_topk": 512,
        "sliding_window": 128,
        "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0],
        "compress_rope_theta": 160000,
        "max_position_embeddings": 1048576,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
