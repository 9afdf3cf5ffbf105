"""The names of the zoo, without the libraries that build them.

A name is KIND_ARCHITECTURE. The module of a kind has a function `make`, from the architecture to what writes it.
"""

from __future__ import annotations

# Of timm: the smallest of each family, and a few more where a family has several kinds of blocks.
TIMM = (
    *("beit_base_patch16_224", "botnet26t_256", "cait_xxs24_224", "coat_lite_tiny", "coatnet_pico_rw_224"),
    *("convit_tiny", "convmixer_768_32", "convnext_atto", "convnextv2_atto", "cpubone_nano", "crossvit_tiny_240"),
    *("cs3darknet_s", "cspnext_tiny", "davit_tiny", "deit_tiny_patch16_224", "densenetblur121d", "dla46x_c"),
    *("dpn48b", "eca_halonext26ts", "edgenext_xx_small", "efficientformer_l1", "efficientformerv2_s0"),
    *("efficientnet_b0", "efficientnetv2_rw_t", "efficientvim_m1", "efficientvit_b0", "efficientvit_m0"),
    *("ese_vovnet19b_dw", "eva02_tiny_patch14_224", "fasternet_t0", "fastvit_t8", "focalnet_tiny_srf"),
    *("gcvit_xxtiny", "gernet_s", "ghostnet_050", "gmlp_ti16_224", "halonet_h1", "hardcorenas_a", "hgnetv2_b0"),
    *("hiera_tiny_224", "hrnet_w18_small", "iformer_t", "inception_next_atto", "inception_v3", "lambda_resnet26t"),
    *("lcnet_050", "lcnetv2_small", "legacy_seresnext26_32x4d", "levit_128s", "lowformer_b0", "mambaout_femto"),
    *("maxvit_pico_rw_256", "mixer_s16_224", "mnasnet_small", "mobilenetv3_small_100", "mobilenetv4_conv_small"),
    *("mobileone_s0", "mobilevit_xxs", "mobilevitv2_050", "mvitv2_tiny", "nest_tiny", "nextvit_small"),
    *("nf_regnet_b0", "pit_ti_224", "poolformer_s12", "pvt_v2_b0", "rdnet_tiny", "regnetx_002", "regnety_002"),
    *("repghostnet_050", "repvit_m0_9", "res2net50_14w_8s", "resmlp_12_224", "resnest14d", "resnetv2_18"),
    *("rexnet_100", "selecsls42b", "semnasnet_050", "sequencer2d_s", "shvit_s1", "skresnet18", "starnet_s1"),
    *("swiftformer_xs", "swin_tiny_patch4_window7_224", "swinv2_tiny_window8_256", "test_resnet", "tiny_vit_5m_224"),
    *("tinynet_e", "tnt_s_legacy_patch16_224", "tresnet_m", "twins_svt_small", "vgg11_bn", "visformer_tiny"),
    *("vit_tiny_patch16_224", "vit_relpos_small_patch16_224", "volo_d1_224", "xception41", "xcit_nano_12_p16_224"),
)
TORCHVISION = (
    *("alexnet", "googlenet", "mnasnet0_5", "shufflenet_v2_x0_5", "squeezenet1_0", "lraspp_mobilenet_v3_large"),
    *("deeplabv3_mobilenet_v3_large", "fcn_resnet50", "raft_small", "r3d_18", "mc3_18", "r2plus1d_18", "s3d"),
    "mvit_v1_b",
)
TRANSFORMERS = (
    *("albert", "bert", "big_bird", "convbert", "deberta", "deberta-v2", "distilbert", "electra", "fnet"),
    *("layoutlm", "mobilebert", "modernbert", "mpnet", "nystromformer", "roberta", "roformer", "squeezebert"),
    *("xlnet", "bloom", "codegen", "cohere", "falcon", "gemma", "gemma2", "gemma3_text", "gpt2", "gpt_bigcode"),
    *("gpt_neo", "gpt_neox", "gptj", "granite", "llama", "mistral", "mpt", "nemotron", "olmo2", "opt"),
    *("phi", "phi3", "qwen2", "qwen3", "stablelm", "starcoder2", "xglm", "falcon_mamba", "mamba"),
    *("mamba2", "recurrent_gemma", "rwkv", "bart", "blenderbot-small", "m2m_100", "marian", "pegasus", "t5", "mt5"),
    *("audio-spectrogram-transformer", "data2vec-audio", "hubert", "sew", "speech_to_text", "unispeech", "wav2vec2"),
    *("wav2vec2-conformer", "wavlm", "whisper", "clip_vision_model", "convnext", "cvt", "deit"),
    *("detr", "dinov2", "dpt", "glpn", "poolformer", "regnet", "segformer", "siglip_vision_model", "swin2sr"),
    *("videomae", "vit", "vit_mae", "yolos", "patchtst", "patchtsmixer", "univnet", "vits"),
)
OWN = (
    *("unet", "unet_attention", "unet_3d", "unet_plus_plus", "ssd_lite", "yolo_tiny", "yolo_split", "centernet"),
    *("feature_pyramid", "espcn", "edsr", "style_transfer", "dcgan_generator", "diffusion_unet", "diffusion_vae"),
    *("diffusion_transformer", "conv_tasnet", "hifi_gan", "wavenet", "quartznet", "conformer", "deep_speech"),
    *("demucs", "gcn", "gat", "graph_sage", "gin", "edge_conv", "pointnet", "dlrm", "deep_fm", "nbeats", "tcn"),
    *("s4d", "selective_scan", "nerf", "keyword_spotter", "crnn", "bilstm_tagger", "seq2seq_gru", "wide_resnet"),
    *("eegnet", "blaze_face", "vq_vae"),
)
# By hand, in the form that other exporters write.
ONNX = ("lstm_20", "lstm_100", "lstm_bidirectional_100", "gru_20", "gru_100", "rnn_100", "lstm_peephole_50", "scan_50")
KINDS = {"timm": TIMM, "torchvision": TORCHVISION, "transformers": TRANSFORMERS, "own": OWN, "onnx": ONNX}
NAMES = tuple(f"{kind}_{name}" for kind, names in KINDS.items() for name in names)


def split(name: str) -> tuple[str, str]:
    """Return a name's kind and architecture."""
    kind, _, architecture = name.partition("_")
    return kind, architecture
