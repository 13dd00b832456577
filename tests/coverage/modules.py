"""Plain modules of PyTorch for compiled.py: each with its arguments by number of tokens."""

import torch
from torch import nn
from torch.nn import functional as F


class Of(nn.Module):
    """A function with parameters of given shapes."""

    def __init__(self, function, *shapes):
        super().__init__()
        self.function = function
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(shape) * 0.3) for shape in shapes])

    def forward(self, **given):
        weights = [self.weights[i] for i in range(len(self.weights))]
        return self.function(*given.values(), *weights)


class Called(nn.Module):
    """A module called with its arguments in order."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, **given):
        return self.module(*given.values())


class Residual(nn.Module):
    """A block of a ResNet."""

    def __init__(self, channels, stride=1):
        super().__init__()
        self.a = nn.Conv2d(channels, 2 * channels, 3, stride, 1, bias=False)
        self.b = nn.Conv2d(2 * channels, 2 * channels, 3, 1, 1, bias=False)
        self.short = nn.Conv2d(channels, 2 * channels, 1, stride, bias=False)
        self.na, self.nb, self.ns = (nn.BatchNorm2d(2 * channels) for _ in range(3))

    def forward(self, x):
        y = self.nb(self.b(F.relu(self.na(self.a(x)))))
        return F.adaptive_avg_pool2d(F.relu(y + self.ns(self.short(x))), 1)


class Unet(nn.Module):
    """Down by a pool, up by interpolation or a transposed convolution, with a way across."""

    def __init__(self, up):
        super().__init__()
        self.first, self.low, self.last = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(12, 3, 3, padding=1)
        self.up = nn.ConvTranspose2d(8, 8, 2, 2) if up else nn.Upsample(scale_factor=2, mode="nearest")
        self.norm = nn.GroupNorm(2, 4)

    def forward(self, x):
        high = F.silu(self.norm(self.first(x)))
        low = self.up(F.silu(self.low(F.max_pool2d(high, 2))))
        return self.last(torch.cat([high, low], 1))


class Bags(nn.Module):
    def __init__(self, mode):
        super().__init__()
        self.bag = nn.EmbeddingBag(16, 8, mode=mode)

    def forward(self, ids):
        return self.bag(ids)


def r(*shape):
    return torch.randn(shape)


def rows(n):
    return dict(x=r(n, 8))


def batch(n):
    return dict(x=r(2, n, 8))


def images(_n):
    return dict(x=r(2, 3, 8, 8))


def waves(n):
    return dict(x=r(2, 4, n + 4))


def heads(n):
    return dict(q=r(2, 4, n, 8), k=r(2, 4, n, 8), v=r(2, 4, n, 8))


def ids(n):
    return dict(x=torch.randint(0, 16, (2, n)))


def labelled(n):
    labels = torch.randint(0, 8, (n,))
    labels[0] = -100
    return dict(x=r(n, 8), y=labels)


def indexed(n):
    return dict(x=r(n, 8), i=torch.randint(0, n, (n,)))


def pointed(n):
    return dict(x=r(n, 8), i=torch.randint(0, n, (n, 8)))


def f(function, given=rows, *shapes):
    return lambda: (Of(function, *shapes), given)


def m(make, given=rows):
    return lambda: (Called(make()), given)


W = (8, 8)

MODULES = {
    "resnet_eval": m(lambda: Residual(3).eval(), images),
    "resnet_train": m(lambda: Residual(3, 2).train(), images),
    "unet_nearest": m(lambda: Unet(False), images),
    "unet_transposed": m(lambda: Unet(True), images),
    "lstm": m(lambda: nn.LSTM(8, 8, 1, batch_first=True), lambda n: dict(x=r(2, 5, 8))),
    "gru": m(lambda: nn.GRU(8, 8, 2, batch_first=True), lambda n: dict(x=r(2, 5, 8))),
    "rnn_bidirectional": m(lambda: nn.RNN(8, 8, batch_first=True, bidirectional=True), lambda n: dict(x=r(2, 5, 8))),
    "lstm_cell": m(lambda: nn.LSTMCell(8, 8), rows),
    "conv1d": m(lambda: nn.Conv1d(4, 8, 3, padding=1), waves),
    "conv1d_causal": m(lambda: nn.Sequential(nn.ConstantPad1d((3, 0), 0.0), nn.Conv1d(4, 4, 4, groups=4)), waves),
    "conv1d_strided": m(lambda: nn.Conv1d(4, 8, 3, 2, 1), waves),
    "conv1d_dilated": m(lambda: nn.Conv1d(4, 8, 3, dilation=2), waves),
    "conv1d_same": m(lambda: nn.Conv1d(4, 8, 4, padding="same"), waves),
    "conv1d_reflect": m(lambda: nn.Conv1d(4, 8, 3, padding=1, padding_mode="reflect"), waves),
    "conv1d_circular": m(lambda: nn.Conv1d(4, 8, 3, padding=1, padding_mode="circular"), waves),
    "conv_transpose1d": m(lambda: nn.ConvTranspose1d(4, 8, 4, 2, 1, 1, groups=2), waves),
    "conv2d": m(lambda: nn.Conv2d(3, 4, (3, 2), (2, 1), (1, 0)), images),
    "conv2d_depthwise": m(lambda: nn.Conv2d(3, 6, 3, padding=1, groups=3, dilation=1), images),
    "conv2d_patches": m(lambda: nn.Conv2d(3, 8, 4, 4), images),
    "conv2d_large_patches": m(lambda: nn.Conv2d(3, 8, 16, 16), lambda n: dict(x=r(2, 3, 32, 32))),
    "conv3d": m(lambda: nn.Conv3d(2, 4, 3, padding=1), lambda n: dict(x=r(1, 2, 4, 4, 4))),
    "max_pool2d": m(lambda: nn.MaxPool2d(3, 2, 1), images),
    "avg_pool2d": m(lambda: nn.AvgPool2d(3, 2, 1), images),
    "adaptive_avg_pool2d": m(lambda: nn.AdaptiveAvgPool2d((2, 4)), images),
    "max_pool1d": m(lambda: nn.MaxPool1d(2), waves),
    "avg_pool1d": m(lambda: nn.AvgPool1d(2, 1), waves),
    "upsample_bilinear": m(lambda: nn.Upsample(scale_factor=2, mode="bilinear"), images),
    "pixel_shuffle": m(lambda: nn.PixelShuffle(2), lambda n: dict(x=r(2, 8, 4, 4))),
    "unfold": m(lambda: nn.Unfold(3, padding=1), images),
    "reflection_pad": m(lambda: nn.ReflectionPad2d(2), images),
    "replication_pad": m(lambda: nn.ReplicationPad1d(2), waves),
    "embedding": m(lambda: nn.Embedding(16, 8, padding_idx=0), ids),
    "bag_sum": m(lambda: Bags("sum"), ids),
    "bag_mean": m(lambda: Bags("mean"), ids),
    "bag_max": m(lambda: Bags("max"), ids),
    "layer_norm": m(lambda: nn.LayerNorm(8), batch),
    "rms_norm": m(lambda: nn.RMSNorm(8), batch),
    "group_norm": m(lambda: nn.GroupNorm(2, 4), waves),
    "instance_norm": m(lambda: nn.InstanceNorm1d(4, affine=True), waves),
    "batch_norm_eval": m(lambda: nn.BatchNorm1d(8).eval()),
    "batch_norm_train": m(lambda: nn.BatchNorm1d(8).train()),
    "batch_norm_train_no_stats": m(lambda: nn.BatchNorm1d(8, track_running_stats=False).train()),
    "dropout_eval": m(lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)).eval()),
    "encoder_layer": m(lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True).train(), batch),
    "encoder_layer_eval": m(lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), batch),
    "multihead": m(lambda: nn.MultiheadAttention(8, 2, batch_first=True), lambda n: dict(q=r(2, n, 8), k=r(2, n, 8), v=r(2, n, 8))),
    "cross_entropy": f(lambda x, y, w: F.cross_entropy(x @ w, y), labelled, W),
    "cross_entropy_sum_smooth": f(lambda x, y, w: F.cross_entropy(x @ w, y, label_smoothing=0.1, reduction="sum"), labelled, W),
    "cross_entropy_weight": f(lambda x, y, w, c: F.cross_entropy(x @ w, y, weight=c.detach().abs()), labelled, W, (8,)),
    "cross_entropy_none": f(lambda x, y, w: F.cross_entropy(x @ w, y, reduction="none"), labelled, W),
    "bce": f(lambda x, w: F.binary_cross_entropy_with_logits(x @ w, (x > 0).float()), rows, W),
    "bce_plain": f(lambda x, w: F.binary_cross_entropy(torch.sigmoid(x @ w), (x > 0).float()), rows, W),
    "mse": f(lambda x, w: F.mse_loss(x @ w, x), rows, W),
    "smooth_l1": f(lambda x, w: F.smooth_l1_loss(x @ w, x), rows, W),
    "huber": f(lambda x, w: F.huber_loss(x @ w, x), rows, W),
    "l1": f(lambda x, w: F.l1_loss(x @ w, x), rows, W),
    "kl_div": f(lambda x, w: F.kl_div(F.log_softmax(x @ w, -1), F.softmax(x, -1), reduction="batchmean"), rows, W),
    "cosine": f(lambda x, w: F.cosine_similarity(x @ w, x), rows, W),
    "normalize": f(lambda x, w: F.normalize(x @ w, dim=-1), rows, W),
    "cdist": f(lambda x, w: torch.cdist(x @ w, x), rows, W),
    "sdpa": f(lambda q, k, v, w: F.scaled_dot_product_attention(q @ w, k, v), heads, W),
    "sdpa_causal": f(lambda q, k, v, w: F.scaled_dot_product_attention(q @ w, k, v, is_causal=True), heads, W),
    "sdpa_scale": f(lambda q, k, v, w: F.scaled_dot_product_attention(q @ w, k, v, scale=0.3), heads, W),
    "sdpa_bool": f(lambda q, k, v, w: F.scaled_dot_product_attention(q @ w, k, v, attn_mask=torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril(1)), heads, W),
    "sdpa_empty_rows": f(lambda q, k, v, w: F.scaled_dot_product_attention(q @ w, k, v, attn_mask=torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril(-1)), heads, W),
    "sdpa_float": f(lambda q, k, v, w: F.scaled_dot_product_attention(q @ w, k, v, attn_mask=q @ k.transpose(-1, -2)), heads, W),
    "sdpa_gqa": f(lambda q, k, v, w: F.scaled_dot_product_attention(q @ w, k[:, :2], v[:, :2], enable_gqa=True), heads, W),
    "sdpa_cross": f(lambda q, k, v, w: F.scaled_dot_product_attention(q[:, :, :2] @ w, k, v, is_causal=True), heads, W),
    "einsum": f(lambda x, w: torch.einsum("bnd,de->ben", x, w), batch, W),
    "einsum_many": f(lambda x, w: torch.einsum("bnd,bmd,de->nme", x, x, w), batch, W),
    "bilinear": m(lambda: nn.Bilinear(8, 8, 4), lambda n: dict(a=r(n, 8), b=r(n, 8))),
    "index_put": f(lambda x, i, w: torch.zeros_like(x).index_put((i,), x @ w, accumulate=True), indexed, W),
    "index_put_mask": f(lambda x, w: (x @ w).masked_fill(x > 0, 0.5), rows, W),
    "index_put_masked": f(lambda x, w: _masked(x @ w, x > 0), rows, W),
    "scatter": f(lambda x, i, w: torch.zeros_like(x).scatter(0, i % 2, x @ w).sum() * 0 + (x @ w), pointed, W),
    "scatter_add": f(lambda x, i, w: torch.zeros_like(x).scatter_add(0, i, x @ w), pointed, W),
    "scatter_reduce_amax": f(lambda x, i, w: torch.zeros_like(x).scatter_reduce(0, i, x @ w, "amax"), pointed, W),
    "scatter_reduce_mean": f(lambda x, i, w: torch.zeros_like(x).scatter_reduce(0, i, x @ w, "mean"), pointed, W),
    "index_add": f(lambda x, i, w: torch.zeros_like(x).index_add(0, i, x @ w), indexed, W),
    "gather": f(lambda x, i, w: (x @ w).gather(0, i), pointed, W),
    "index_select": f(lambda x, i, w: (x @ w).index_select(0, i), indexed, W),
    "advanced_index": f(lambda x, i, w: (x @ w)[i, i % 8], indexed, W),
    "topk": f(lambda x, w: (x @ w).topk(3), rows, W),
    "topk_smallest": f(lambda x, w: (x @ w).topk(3, largest=False), rows, W),
    "sort": f(lambda x, w: (x @ w).sort(descending=True), rows, W),
    "sort_tokens": f(lambda x, w: (x @ w).sort(0), rows, W),
    "argsort": f(lambda x, w: (x @ w).argsort(-1).float() * 1.0, rows, W),
    "kthvalue": f(lambda x, w: (x @ w).kthvalue(3), rows, W),
    "median": f(lambda x, w: (x @ w).median(-1), rows, W),
    "cumsum": f(lambda x, w: (x @ w).cumsum(0), rows, W),
    "cumprod": f(lambda x, w: (x @ w).cumprod(-1), rows, W),
    "cummax": f(lambda x, w: (x @ w).cummax(-1), rows, W),
    "logcumsumexp": f(lambda x, w: (x @ w).logcumsumexp(0), rows, W),
    "logsumexp": f(lambda x, w: (x @ w).logsumexp(-1), rows, W),
    "var": f(lambda x, w: (x @ w).var(-1), rows, W),
    "std": f(lambda x, w: (x @ w).std(0), rows, W),
    "norm": f(lambda x, w: (x @ w).norm(dim=-1), rows, W),
    "norm_1": f(lambda x, w: (x @ w).norm(1, dim=-1), rows, W),
    "prod": f(lambda x, w: (x @ w).prod(-1), rows, W),
    "amax": f(lambda x, w: (x @ w).amax(-1), rows, W),
    "max_dim": f(lambda x, w: (x @ w).max(-1), rows, W),
    "min_dim": f(lambda x, w: (x @ w).min(0), rows, W),
    "max_all": f(lambda x, w: (x @ w).max(), rows, W),
    "nonzero": f(lambda x, w: (x @ w)[(x[:, 0] > 0).nonzero().squeeze(-1)], rows, W),
    "boolean_index": f(lambda x, w: (x @ w)[x[:, 0] > 0], rows, W),
    "item": f(lambda x, w: (x @ w) * (x.sum().item() if x.shape[0] else 1), rows, W),
    "where": f(lambda x, w: torch.where(x > 0, x @ w, x.exp()), rows, W),
    "unique": f(lambda x, w: (x @ w).sum() * x.sign().unique().numel(), rows, W),
    "bincount": f(lambda x, w: (x @ w).sum() * (x > 0).long().flatten().bincount(minlength=3), rows, W),
    "histc": f(lambda x, w: (x @ w).sum() + x.histc(4, -1, 1), rows, W),
    "roll": f(lambda x, w: (x @ w).roll(1, 0), rows, W),
    "flip": f(lambda x, w: (x @ w).flip(0), rows, W),
    "repeat": f(lambda x, w: (x @ w).repeat(2, 3), rows, W),
    "repeat_interleave": f(lambda x, w: (x @ w).repeat_interleave(3, 0), rows, W),
    "tril": f(lambda x, w: (x @ w @ x.T).tril(), rows, W),
    "diagonal": f(lambda x, w: (x @ w @ x.T).diagonal(), rows, W),
    "diag_embed": f(lambda x, w: torch.diag_embed(x @ w), rows, W),
    "trace": f(lambda x, w: (x @ w @ x.T).trace(), rows, W),
    "outer": f(lambda x, w: torch.outer(x[:, 0], w[0]), rows, W),
    "kron": f(lambda x, w: torch.kron(x @ w, w), rows, W),
    "chunk": f(lambda x, w: [p * 2 for p in (x @ w).chunk(3, -1)], rows, W),
    "split": f(lambda x, w: [p * 2 for p in (x @ w).split([3, 5], -1)], rows, W),
    "unbind": f(lambda x, w: [p * 2 for p in (x @ w).unbind(-1)], rows, W),
    "unfold_axis": f(lambda x, w: (x @ w).unfold(-1, 3, 2), rows, W),
    "as_strided": f(lambda x, w: (x @ w).as_strided((2, 3), (8, 2)), rows, W),
    "slices": f(lambda x, w: (x @ w)[::2, 1:-1] * 2, rows, W),
    "halves": f(lambda x, w: (x @ w)[: x.shape[0] // 2], rows, W),
    "pairs": f(lambda x, w: (x @ w).view(x.shape[0] // 2, 2, 8).sum(1), lambda n: rows(2 * n), W),
    "chunks_padded": f(lambda x, w: F.pad(x @ w, (0, 0, 0, -x.shape[0] % 4)).view(-1, 4, 8).sum(1), rows, W),
    "triu_indices": f(lambda x, w: (x @ w)[:, torch.triu_indices(4, 4)[0]], rows, W),
    "gelu": f(lambda x, w: F.gelu(x @ w), rows, W),
    "gelu_tanh": f(lambda x, w: F.gelu(x @ w, approximate="tanh"), rows, W),
    "silu": f(lambda x, w: F.silu(x @ w), rows, W),
    "elu": f(lambda x, w: F.elu(x @ w), rows, W),
    "selu": f(lambda x, w: F.selu(x @ w), rows, W),
    "celu": f(lambda x, w: F.celu(x @ w, 0.7), rows, W),
    "leaky": f(lambda x, w: F.leaky_relu(x @ w, 0.1), rows, W),
    "prelu": m(lambda: nn.PReLU(8)),
    "softplus": f(lambda x, w: F.softplus(x @ w), rows, W),
    "mish": f(lambda x, w: F.mish(x @ w), rows, W),
    "hardswish": f(lambda x, w: F.hardswish(x @ w), rows, W),
    "hardsigmoid": f(lambda x, w: F.hardsigmoid(x @ w), rows, W),
    "hardtanh": f(lambda x, w: F.hardtanh(x @ w), rows, W),
    "relu6": f(lambda x, w: F.relu6(x @ w), rows, W),
    "logsigmoid": f(lambda x, w: F.logsigmoid(x @ w), rows, W),
    "tanhshrink": f(lambda x, w: F.tanhshrink(x @ w), rows, W),
    "softshrink": f(lambda x, w: F.softshrink(x @ w), rows, W),
    "hardshrink": f(lambda x, w: F.hardshrink(x @ w), rows, W),
    "softsign": f(lambda x, w: F.softsign(x @ w), rows, W),
    "glu": f(lambda x, w: F.glu(x @ w), rows, W),
    "pow": f(lambda x, w: (x @ w).abs().pow(1.5) + 2.0 ** (x @ w), rows, W),
    "trigonometry": f(lambda x, w: torch.atan2(x @ w, x) + torch.asin(torch.tanh(x)) + torch.sinh(x) + torch.tan(x * 0.1), rows, W),
    "special": f(lambda x, w: torch.erf(x @ w) + torch.lgamma(x.abs() + 1) + torch.digamma(x.abs() + 1), rows, W),
    "erfinv": f(lambda x, w: torch.erfinv(torch.tanh(x @ w) * 0.9), rows, W),
    "logaddexp": f(lambda x, w: torch.logaddexp(x @ w, x), rows, W),
    "hypot": f(lambda x, w: torch.hypot(x @ w, x), rows, W),
    "xlogy": f(lambda x, w: torch.xlogy(x.abs(), (x @ w).abs() + 1), rows, W),
    "round_decimals": f(lambda x, w: (x @ w) + torch.round(x, decimals=2), rows, W),
    "frac": f(lambda x, w: torch.frac(x @ w), rows, W),
    "remainder": f(lambda x, w: torch.remainder(x @ w, 0.7) + torch.fmod(x, 0.3), rows, W),
    "clamp": f(lambda x, w: (x @ w).clamp(-0.5, 0.5), rows, W),
    "lerp": f(lambda x, w: torch.lerp(x @ w, x, 0.3), rows, W),
    "shifts": f(lambda x, w: (x @ w) * ((x > 0).long() << 2).float(), rows, W),
    "bucketize": f(lambda x, w: (x @ w) * torch.bucketize(x, torch.linspace(-1, 1, 5)).float(), rows, W),
    "searchsorted": f(lambda x, w: (x @ w) * torch.searchsorted(torch.linspace(-1, 1, 5), x).float(), rows, W),
    "isin": f(lambda x, i, w: (x @ w) * torch.isin(i, torch.tensor([1, 2]))[:, None], indexed, W),
    "baddbmm": f(lambda x, w: torch.baddbmm(x, x, w.expand(2, 8, 8), beta=0.5, alpha=2.0), batch, W),
    "addcmul": f(lambda x, w: torch.addcmul(x, x @ w, x, value=0.5) + torch.addcdiv(x, x @ w, x.abs() + 1), rows, W),
    "complex_rotary": f(lambda x, w: torch.view_as_real(torch.view_as_complex((x @ w).view(-1, 4, 2)) * torch.polar(torch.ones(4), x[:, :4])), rows, W),
    "fft": f(lambda x, w: torch.fft.rfft(x @ w).abs(), rows, W),
    "inverse": f(lambda x, w: x @ torch.linalg.inv(w + 9 * torch.eye(8)), rows, W),
    "cumsum_scan": f(lambda x, w: torch.cumsum((x @ w).flip(0), 0).flip(0), rows, W),
    "while_python": f(lambda x, w: x @ torch.linalg.matrix_power(w, 3), rows, W),
    "weight_norm": m(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))),
    "spectral_norm": m(lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)).eval()),
    "checkpoint": f(lambda x, w: torch.utils.checkpoint.checkpoint(lambda a: F.gelu(a @ w) @ w, x, use_reentrant=False), rows, W),
    "inplace": f(lambda x, w: _inplace(x @ w), rows, W),
    "half_sums": f(lambda x, w: ((x @ w).to(torch.bfloat16).float().sum(-1)), rows, W),
    "neg_view": f(lambda x, w: torch.view_as_real(torch.view_as_complex((x @ w).view(-1, 4, 2)).conj()).sum(-1), rows, W),
    "int_division": f(lambda x, i, w: (x @ w) * (i // 3 + i % 3)[:, None], indexed, W),
    "grid_sample": f(lambda x: F.grid_sample(x, torch.zeros(2, 4, 4, 2), align_corners=False), images),
    "local_response": m(lambda: nn.LocalResponseNorm(2), images),
    "channel_shuffle": m(lambda: nn.ChannelShuffle(3), images),
}

# What has no gradient, or one that depends on the order of equal elements.
INFER_ONLY = {"argsort", "sort_tokens"}


def _masked(x, mask):
    x = x.clone()
    x[mask] = 0.0
    return x


def _inplace(x):
    x = x.clone()
    x[1:] += 1
    x[:, 0].mul_(2)
    return x.relu_()


def ways(name):
    return ("infer",) if name in INFER_ONLY else ("infer", "train")


def built(name):
    """A module, its arguments by number of tokens, and the numbers to try."""
    torch.manual_seed(5)
    module, given = MODULES[name]()
    fixed = all(a.shape == b.shape for a, b in zip(given(7).values(), given(2).values()))
    return module, lambda _model, n: given(n), (7,) if fixed else (7, 2, 100)
