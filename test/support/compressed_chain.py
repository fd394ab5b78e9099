"""A request served through SGLang's backend, from the compressor's input to attention.

Built on the attention kit's runner: its backend plans, SGLang's CUDA kernels compress,
and the pool's stores write. What a model would compute is drawn at random.
"""

from types import SimpleNamespace

import torch
from sglang.srt.mem_cache.deepseek_v4_memory_pool import get_compress_state_ring_size
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context
from support.attention_kit import KitTestCase, kit, make_case
from support.references import rope_table

LATENT_DIM = 512
EPS = 1e-6
SWA_SIZE = 2048
MAX_CONTEXT_LEN = 1024


class Request:
    """Inputs of every token of one request.

    Compressors pool a group's values by a softmax over their scores plus ``ape``; those
    of ratio 4 overlap: one half of the columns counts in a token's own group, the other
    in the next.
    """

    def __init__(self, ratio: int, length: int, generator, device: str) -> None:
        self.ratio = ratio
        self.width = LATENT_DIM * (2 if ratio == 4 else 1)

        def draw(*shape):
            return torch.randn(shape, generator=generator).to(device)

        self.latents = draw(length, LATENT_DIM).bfloat16()
        self.queries = draw(length, 64, LATENT_DIM).bfloat16()
        self.kv_score = draw(length, 2 * self.width)
        self.ape = draw(ratio, self.width)
        self.norm_weight = 1 + 0.1 * draw(LATENT_DIM)
        self.freqs_cis = rope_table(MAX_CONTEXT_LEN).to(device)

    def __len__(self) -> int:
        return len(self.latents)

    def compressed_rows(self) -> torch.Tensor:
        """``[groups, 512]`` FP64: what the compressor gives, before norm and RoPE."""
        groups = len(self) // self.ratio
        kv, score = self.kv_score.double().split(self.width, dim=1)
        # SGLang keeps the first half's rows of ape, then the second's.
        ape = self.ape.double().view(-1, LATENT_DIM)
        rows = []
        for group in range(groups):
            own = slice(group * self.ratio, (group + 1) * self.ratio)
            values, scores = kv[own, -LATENT_DIM:], score[own, -LATENT_DIM:]
            scores = scores + ape[-self.ratio :]
            if self.ratio == 4 and group > 0:
                before = slice(own.start - self.ratio, own.start)
                values = torch.cat([kv[before, :LATENT_DIM], values])
                earlier = score[before, :LATENT_DIM] + ape[: self.ratio]
                scores = torch.cat([earlier, scores])
            rows.append((scores.softmax(dim=0) * values).sum(dim=0))
        return torch.stack(rows)


class Server:
    """One backend and pool, serving one request chunk by chunk."""

    def __init__(self, pool_class: type, ratio: int, device: str, monkeypatch) -> None:
        self.device = device
        monkeypatch.setattr(kit, "DeepSeekV4TokenToKVPool", _with_states(pool_class))
        # Pages as SGLang's allocator gives them: whole ones, the first left out.
        monkeypatch.setattr(kit, "_token_loc", _token_loc)
        self.fixture = kit.build_dsv4_attention_fixture(
            KitTestCase(),
            make_case(ForwardMode.EXTEND, (0,), (1,), ratio),
            swa_size=SWA_SIZE,
            max_context_len=MAX_CONTEXT_LEN,
            device=device,
        )
        self.pool = self.fixture.runner.token_to_kv_pool

    def prefill(self, request: Request, start: int, stop: int) -> torch.Tensor:
        case = make_case(ForwardMode.EXTEND, (start,), (stop - start,), request.ratio)
        return self._forward(request, case, start, stop)

    def decode(self, request: Request, position: int) -> torch.Tensor:
        case = make_case(ForwardMode.DECODE, (position,), (), request.ratio)
        return self._forward(request, case, position, position + 1)

    def pages(self) -> list[torch.Tensor]:
        """The bytes of the window's and the compressed cache's pages."""
        return [
            self.pool.get_swa_key_buffer_radix(0).view(torch.uint8).clone(),
            self.pool.get_extra_key_buffer(0).view(torch.uint8).clone(),
        ]

    def _forward(self, request, case, start, stop) -> torch.Tensor:
        """Store and attend as a layer does: ``[tokens, 64, 512]``."""
        batch = kit._make_forward_batch(
            case,
            self.fixture.runner,
            max_context_len=MAX_CONTEXT_LEN,
            device=self.device,
        )
        backend = self.fixture.backend
        with torch.no_grad(), forward_context(ForwardContext(attn_backend=backend)):
            backend.init_forward_metadata(batch)
            self.pool.set_swa_key_buffer_radix_fused_norm_rope(
                layer_id=0,
                swa_loc=batch.out_cache_loc.int(),
                kv=request.latents[start:stop],
                kv_weight=request.norm_weight.bfloat16(),
                eps=EPS,
                freqs_cis=request.freqs_cis,
                positions=batch.positions,
            )
            backend.forward_core_compressor(
                request.kv_score[start:stop].contiguous(),
                batch,
                0,
                _compressor(request),
            )
            if request.ratio == 4:
                self._select_all(batch.positions)
            return backend.forward(
                q=request.queries[start:stop].contiguous(),
                k=None,
                v=None,
                layer=self.fixture.actual_module.attn,
                forward_batch=batch,
                compress_ratio=request.ratio,
                save_kv_cache=False,
                attn_sink=self.fixture.actual_module.attn_sink,
            ).view(stop - start, 64, LATENT_DIM)

    def _select_all(self, positions: torch.Tensor) -> None:
        """Every entry so far, in place of what the indexer would choose."""
        metadata = self.fixture.backend.forward_metadata.core_metadata
        indices = metadata.sparse_page_indices(4)
        entry = torch.arange(indices.shape[1], device=self.device, dtype=indices.dtype)
        counts = (positions.to(indices.dtype) + 1) // 4
        chosen = torch.where(
            entry < counts[:, None], entry + kit.DSV4_PAGE_SIZE // 4, -1
        )
        metadata.set_sparse_topk(
            4,
            page_indices=chosen.to(indices.dtype).contiguous(),
            topk_lengths=counts.to(metadata.sparse_topk_lengths(4).dtype),
        )


def _token_loc(req_idx: int, pos: int, *, max_context_len: int) -> int:
    return kit.DSV4_PAGE_SIZE + req_idx * max_context_len + pos


def _compressor(request: Request) -> SimpleNamespace:
    """What the backend asks of a model's compressor."""
    return SimpleNamespace(
        ratio=request.ratio,
        head_dim=LATENT_DIM,
        is_in_indexer=False,
        rotate=False,
        ape=request.ape,
        norm=SimpleNamespace(weight=request.norm_weight, variance_epsilon=EPS),
        freqs_cis=request.freqs_cis,
        compute_kv_score=lambda x, forward_batch: x,
        get_state_pool=lambda backend: (
            backend.token_to_kv_pool.get_attention_compress_states(0)
        ),
    )


def _with_states(pool_class: type) -> type:
    """The pool with room for the compressors' states, FP32 as in production.

    The kit's cases never compress, and leave it out.
    """

    num_pages = SWA_SIZE // kit.DSV4_PAGE_SIZE + 1

    class Pool(pool_class):
        def __init__(self, **arguments):
            super().__init__(
                **arguments
                | dict(
                    c4_state_pool_size=num_pages * get_compress_state_ring_size(4),
                    c4_state_dtype=torch.float32,
                    c128_state_dtype=torch.float32,
                )
            )

    return Pool
