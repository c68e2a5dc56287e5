"""Fields of OpenAI's API and of other servers that have no effect here, with the reason of each."""

from __future__ import annotations

from quire.server.rules import Rules, each, ignored, instead, refused

_CACHED = "Every prefix is cached as long as there is memory."
_LABEL = "The server does not tell callers apart."
_NOTHING_STORED = "Chats are not stored; /v1/responses stores."
_NO_SAMPLER = "Leave it out; docs/compatibility.md lists the supported samplers."
_FIXED_ORDER = "Their order is fixed: penalties, temperature, top_k, top_p, min_p."
_NO_GUIDANCE = "There is no classifier-free guidance."
_OFF = "The sampler that it belongs to is off."
_ONE_TIER = "There is one tier of service."
_TEMPLATE_KWARGS = (
    "Another field contradicts it, or the model has no such switch. Send chat_template_kwargs, "
    "with the name that the chat template knows."
)
_TEXT_ONLY = "The model writes text."
_ONE_WAY = "The server reads all images in one way; --mm-processor-kwargs sets it."

LABELS: Rules = {
    **each("user safety_identifier", ignored(_LABEL, strict=None)),
    "prompt_cache_key": ignored(_CACHED, strict=None),
    "prompt_cache_retention": ignored(_CACHED),
    "service_tier": ignored(_ONE_TIER, strict=("auto", "default")),
    "metadata": ignored(_NOTHING_STORED),
    "store": ignored(_NOTHING_STORED, strict=(False,)),
}

SAMPLERS: Rules = {
    # Other names of supported fields.
    **each("max_new_tokens max_length n_predict num_predict", instead("max_tokens")),
    **each("repeat_penalty rep_pen", instead("repetition_penalty", 1)),
    **each("stop_sequences stop_strings stopping_strings", instead("stop")),
    **each("banned_strings banned_tokens custom_token_bans", instead("bad_words")),
    "ban_eos_token": instead("ignore_eos", False),
    **each("n_probs top_n_tokens", instead("logprobs", 0)),
    "do_sample": refused("Send temperature 0 for the likeliest tokens.", True),
    "return_full_text": instead("echo", False),
    "regex": instead("structured_outputs.regex"),
    **each("ebnf grammar", instead("structured_outputs.grammar")),
    **each("json_schema format", instead("response_format")),
    **each("custom_logit_processor logits_processors", refused("Clients cannot bring code.")),
    "extra_body": refused("Send its fields at the top level of the body."),
    "options": refused("Send its fields at the top level of the body, with OpenAI's names."),
    "nvext": refused("Send its fields at the top level of the body."),
    "n_keep": instead("truncate_prompt_tokens"),
    # Unsupported samplers, and their settings.
    **each("typical_p typical typ_p tfs tfs_z", refused(_NO_SAMPLER, 1)),
    **each("top_a epsilon_cutoff eta_cutoff mirostat mirostat_mode", refused(_NO_SAMPLER, 0)),
    **each("xtc_probability dry_multiplier dynatemp_range", refused(_NO_SAMPLER, 0)),
    **each("smoothing_factor no_repeat_ngram_size", refused(_NO_SAMPLER, 0)),
    "top_n_sigma": refused(_NO_SAMPLER, 0, -1),
    "min_keep": refused(_NO_SAMPLER, 0, 1),
    "encoder_repetition_penalty": refused(_NO_SAMPLER, 1),
    "exponential_decay_length_penalty": refused(_NO_SAMPLER),
    **each("mirostat_tau mirostat_eta xtc_threshold dynatemp_exponent", ignored(_OFF)),
    **each("dry_base dry_allowed_length dry_penalty_last_n", ignored(_OFF)),
    **each("dry_sequence_breakers smoothing_curve", ignored(_OFF)),
    "temperature_last": refused("The temperature comes first.", False),
    **each("samplers sampler_seq", refused(_FIXED_ORDER)),
    "repeat_last_n": refused("Penalties count the whole text.", -1),
    "penalize_nl": refused("Penalties count every token.", True),
    "watermark": refused("Texts have no watermark.", False),
    **each("guidance_scale cfg_scale", refused(_NO_GUIDANCE, 1)),
    "negative_prompt": refused(_NO_GUIDANCE),
    "num_beams": refused("Send use_beam_search and n to /v1/chat/completions.", 1),
    "diversity_penalty": refused("It belongs to beam search.", 0),
}

_NO_SUCH = "This API does not have it; /v1/chat/completions does."

_OF_CHATS = (
    "add_generation_prompt add_special_tokens chat_template continue_final_message documents "
    "echo function_call functions guided_whitespace_pattern prompt_logprobs return_prompt_text "
    "return_token_ids return_tokens_as_token_ids truncate_prompt_tokens truncation_side"
)

CHAT_SAMPLING: Rules = {
    **each("bad_words structured_outputs allowed_token_ids stop_token_ids", refused(_NO_SUCH)),
    **each("skip_special_tokens spaces_between_special_tokens", refused(_NO_SUCH, True)),
    "include_stop_str_in_output": refused(_NO_SUCH, False),
    **each(_OF_CHATS, refused(_NO_SUCH, False)),
    **each("include_reasoning cache_prompt", refused(_NO_SUCH, True)),
    "kv_transfer_params": refused(_NO_SUCH),
    "request_id": ignored("A request's id is its X-Request-Id."),
    "early_stopping": ignored("It belongs to beam search, which is off."),
    "max_completion_tokens": instead("this API's limit of tokens"),
    "stop": instead("stop_sequences"),
    "response_format": instead("this API's format of the text", {"type": "text"}),
    "reasoning_effort": instead("this API's own field for reasoning"),
    "logprobs": refused(_NO_SUCH, False, 0),
    **each("use_beam_search ignore_eos", refused(_NO_SUCH, False)),
    **each("length_penalty n best_of repetition_penalty", refused(_NO_SUCH, 1)),
    **each("presence_penalty frequency_penalty", refused(_NO_SUCH, 0)),
    **each("min_p min_tokens top_logprobs", refused(_NO_SUCH, 0)),
    **each("seed logit_bias logprob_token_ids repetition_detection", refused(_NO_SUCH)),
    "thinking_token_budget": refused(_NO_SUCH),
    "enable_thinking": instead("chat_template_kwargs"),
    **each("guided_json guided_regex guided_choice guided_grammar", refused(_NO_SUCH)),
}
"""Fields of the chat API that change its answers, for APIs that have no such fields."""

COMMON: Rules = {
    **LABELS,
    **SAMPLERS,
    "guided_decoding_backend": ignored("There is one backend."),
    **each("vllm_xargs extra_args", refused("The server has no plug-ins.")),
    "mm_processor_kwargs": refused(_ONE_WAY),
    "multi_modal_data": refused("Send images in the messages of a chat."),
    "id_slot": ignored("Every request gets the next free slot."),
    "keep_alive": ignored("The model stays loaded."),
    "return_hidden_states": refused("Hidden states are not reported.", False),
    "lora_path": refused("Send the adapter's name as model."),
    "watermarking": refused("Texts have no watermark.", False),
    "session_id": ignored(_LABEL, strict=None),
    "stream_interval": ignored("Each event has what the model has written so far."),
    "ec_transfer_params": refused("No other server computes images."),
    "routed_experts_prompt_start": ignored("Experts are not reported.", strict=(0,)),
    **each("return_token_offsets return_mm_kwargs", ignored("It belongs to vLLM's render API.")),
    "rid": ignored("A request's id is its X-Request-Id, or request_id."),
}

COMPLETION: Rules = {
    **each("add_generation_prompt chat_template documents", refused("A text has no messages.")),
    **each("continue_final_message functions function_call", refused("A text has no messages.")),
    "include_reasoning": ignored("All of the text is returned."),
    "parallel_tool_calls": ignored("A completion has no tool calls."),
    "return_prompt_text": instead("echo", False),
    "messages": refused("Send the conversation to /v1/chat/completions."),
    "tools": refused("Tools belong to /v1/chat/completions."),
    "tool_choice": refused("Tools belong to /v1/chat/completions.", "none", "auto"),
    **each("chat_template_kwargs reasoning_effort", refused("A text has no chat template.")),
    **each("max_completion_tokens max_output_tokens", instead("max_tokens")),
    "top_logprobs": instead("logprobs", 0),
}

CHAT: Rules = {
    "max_output_tokens": instead("max_completion_tokens"),
    **each("system instructions", instead("a message of the role system")),
    "previous_response_id": refused("/v1/responses stores conversations."),
    **each("input prompt", instead("messages")),
    "suffix": refused("/v1/completions has texts."),
    "best_of": refused("Send n, and choose among the answers; or use_beam_search.", 1),
    "modalities": refused(_TEXT_ONLY, ["text"]),
    "audio": refused(_TEXT_ONLY),
    "prediction": ignored("It could only make the answer faster."),
    "verbosity": ignored("The model does not see this; ask for the length in a message."),
    "web_search_options": refused("The server searches nothing."),
    "moderation": refused("The server moderates nothing."),
    "media_io_kwargs": refused(_ONE_WAY),
    "reasoning": instead("reasoning_effort"),
    **each("thinking enable_thinking think", refused(_TEMPLATE_KWARGS)),
    "thinking_budget": instead("thinking_token_budget"),
    "models": ignored("The model that `model` names answers."),
    "reasoning_format": refused(
        "Reasoning is separate from the content; include_reasoning false leaves it out.",
        "parsed",
        "auto",
        "deepseek",
    ),
    "separate_reasoning": refused("Reasoning is always apart from the content.", True),
    "stream_reasoning": refused("Reasoning is streamed.", True),
}

_NOT_IN_PROMPT = "The chat template does not get it."
_EMPTY_ONLY = "Only text reaches the prompt."

CACHED: Rules = {"cache_control": ignored(_CACHED, strict=None)}

MESSAGE: Rules = {
    **CACHED,
    "audio": refused(_EMPTY_ONLY),
    "annotations": ignored(_NOT_IN_PROMPT, strict=([],)),
    "thinking": instead("reasoning_content"),
    **each("prefix partial", refused("It continues the last message, the assistant's.", False)),
}
