// The tokenizer of a GGUF file in the form of tokenizer.json and tokenizer_config.json.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "absl/status/statusor.h"
#include "model/gguf/gguf_file.h"
#include "model/tokenizers/tokenizer_file.h"

namespace ovq::model {

bool HasGgufTokenizer(const GgufFile& file);

// tokenizer.ggml.model "gpt2" is byte-level BPE, whose pre-tokenizer tokenizer.ggml.pre names;
// "llama" is SentencePiece's BPE, whose merges follow from the scores. InvalidArgument and
// Unimplemented name the key.
absl::StatusOr<TokenizerFile> GgufTokenizer(const GgufFile& file, int64_t vocab_size);

// Sets the normalizer and the pre-tokenizer of a tokenizer.json with bytes as characters to those
// that ggml calls `pre`, one of those that tokenizer.ggml.pre may be.
void SetPreTokenizer(std::string_view pre, bool add_prefix_space, nlohmann::json& file);

// add_bos_token, add_eos_token, texts of special tokens and chat templates.
absl::StatusOr<nlohmann::json> GgufTokenizerConfig(const GgufFile& file);

}  // namespace ovq::model
