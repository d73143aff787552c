"""The decoder classes that transformers has (version 5.24), so that code of a repository's own is told apart without importing it.

Only asked about models that bring code (`auto_map`): what isn't here would be run as remote code, which is never done. Whether
transformers' class works here is another question, answered when it is loaded. A test compares the names with transformers' own.
"""

_NAMES = """
    AfmoeForCausalLM Apertus1p5TextForCausalLM ApertusForCausalLM ArceeForCausalLM AriaTextForCausalLM AXK1ForCausalLM
    AXK2ForCausalLM BailingHybridForCausalLM BambaForCausalLM BartForCausalLM BeamForCausalLM BertLMHeadModel
    BigBirdForCausalLM BigBirdPegasusForCausalLM BioGptForCausalLM BitNetForCausalLM BlenderbotForCausalLM
    BlenderbotSmallForCausalLM BloomForCausalLM BltForCausalLM CamembertForCausalLM CodeGenForCausalLM
    Cohere2ForCausalLM Cohere2MoeForCausalLM CohereCompassForCausalLM CohereForCausalLM CpmAntForCausalLM
    CTRLLMHeadModel CwmForCausalLM Data2VecTextForCausalLM DbrxForCausalLM DeepseekV2ForCausalLM
    DeepseekV32ForCausalLM DeepseekV3ForCausalLM DeepseekV4ForCausalLM DiffLlamaForCausalLM DogeForCausalLM
    DoryForCausalLM Dots1ForCausalLM Dots3NoteForCausalLM ElectraForCausalLM Emu3ForCausalLM Ernie4_5_MoeForCausalLM
    Ernie4_5ForCausalLM ErnieForCausalLM Exaone4ForCausalLM ExaoneMoeForCausalLM FalconForCausalLM FalconH1ForCausalLM
    FalconMambaForCausalLM FlexOlmoForCausalLM FlintForCausalLM FuyuForCausalLM Gemma2ForCausalLM Gemma3ForCausalLM
    Gemma3nForCausalLM Gemma4AssistantForCausalLM Gemma4ForCausalLM Gemma4UnifiedAssistantForCausalLM
    Gemma4UnifiedForCausalLM GemmaForCausalLM GitForCausalLM Glm4ForCausalLM Glm4MoeForCausalLM Glm4MoeLiteForCausalLM
    GlmForCausalLM GlmMoeDsaForCausalLM GPT2LMHeadModel GPTBigCodeForCausalLM GPTJForCausalLM GPTNeoForCausalLM
    GPTNeoXForCausalLM GPTNeoXJapaneseForCausalLM GptOssForCausalLM GraniteForCausalLM GraniteMoeForCausalLM
    GraniteMoeHybridForCausalLM GraniteMoeSharedForCausalLM GraniteMoeSWAForCausalLM GraniteSWAForCausalLM
    HeliumForCausalLM HrmTextForCausalLM HunYuanDenseV1ForCausalLM HunYuanMoEV1ForCausalLM HyperCLOVAXForCausalLM
    HYV3ForCausalLM HYV4ForCausalLM Inkling2ForCausalLM Inkling2LoopForCausalLM InklingForCausalLM Jais2ForCausalLM
    JambaForCausalLM JetMoeForCausalLM KimiLinearForCausalLM Kolibri1ForCausalLM LagunaForCausalLM LaraMiniForCausalLM
    Lfm2ForCausalLM Lfm2MoeForCausalLM Lfm3ForCausalLM Llama4ForCausalLM LlamaForCausalLM LongcatFlashForCausalLM
    Mamba2ForCausalLM MambaForCausalLM MarianForCausalLM MBartForCausalLM MegatronBertForCausalLM MellumForCausalLM
    MiMoV2FlashForCausalLM MiniCPM3ForCausalLM MiniMaxForCausalLM MiniMaxM2ForCausalLM MiniMaxM3VLForCausalLM
    Ministral3ForCausalLM MinistralForCausalLM MistralForCausalLM MixtralForCausalLM MllamaForCausalLM
    ModernBertDecoderForCausalLM MoshiForCausalLM MptForCausalLM MusicgenForCausalLM MusicgenMelodyForCausalLM
    MvpForCausalLM NanoChatForCausalLM NemotronForCausalLM NemotronHForCausalLM Olmo2ForCausalLM Olmo3ForCausalLM
    OlmoeForCausalLM OlmoForCausalLM OlmoHybridForCausalLM OpenAIGPTLMHeadModel OPTForCausalLM PegasusForCausalLM
    PersimmonForCausalLM Phi3ForCausalLM Phi4MultimodalForCausalLM PhiForCausalLM PhimoeForCausalLM PLBartForCausalLM
    ProphetNetForCausalLM Qwen2ForCausalLM Qwen2MoeForCausalLM Qwen3_5ForCausalLM Qwen3_5MoeForCausalLM
    Qwen3ForCausalLM Qwen3MoeForCausalLM Qwen3NextForCausalLM Qwen4ExpForCausalLM RecurrentGemmaForCausalLM
    RemBertForCausalLM RobertaForCausalLM RobertaPreLayerNormForCausalLM RoCBertForCausalLM RoFormerForCausalLM
    RwkvForCausalLM SeedOssForCausalLM SmolLM3ForCausalLM SolarOpenForCausalLM StableLmForCausalLM
    Starcoder2ForCausalLM TrOCRForCausalLM VaultGemmaForCausalLM WhisperForCausalLM XGLMForCausalLM
    XLMRobertaForCausalLM XLMRobertaXLForCausalLM XLMWithLMHeadModel XLNetLMHeadModel xLSTMForCausalLM XmodForCausalLM
    YoutuForCausalLM Zamba2ForCausalLM ZambaForCausalLM ZayaForCausalLM
"""
DECODERS = frozenset(_NAMES.split())
