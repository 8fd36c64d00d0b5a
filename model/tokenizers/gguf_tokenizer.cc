#include "model/tokenizers/gguf_tokenizer.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/problems.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace ovq::model {
namespace {

using Json = nlohmann::json;

constexpr char kModel[] = "tokenizer.ggml.model", kPre[] = "tokenizer.ggml.pre",
               kTokens[] = "tokenizer.ggml.tokens", kTypes[] = "tokenizer.ggml.token_type",
               kMerges[] = "tokenizer.ggml.merges", kTemplate[] = "tokenizer.chat_template";
constexpr std::string_view kSpace = "\xe2\x96\x81";  // "▁"

enum TokenType : int64_t { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

// A pre-tokenizer by ggml's name, as the tokenizer.json of its models has it.
struct Pre {
  std::string_view name;
  const char* pattern;          // null: that of ByteLevel
  bool composes = false;        // text is normalized to NFC
  bool splits_digits = false;   // before that, each digit is a word
  bool ignores_merges = false;  // a word that is a token is not merged
  bool adds_bos = false;        // unless the file says so
};

constexpr char kCl100k[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kQwen2[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kQwen35[] = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|)"
                           R"( ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kTekken[] =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kO200k[] =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|)"
    R"(\s+(?!\S)|\s+)";

constexpr Pre kPres[] = {
    {"gpt-2", nullptr},
    {"olmo", nullptr, /*composes=*/true},
    {"smollm", nullptr, false, /*splits_digits=*/true},
    {"starcoder", nullptr, false, true},
    {"refact", nullptr, false, true},
    {"command-r", nullptr, true, true},
    {"llama-bpe", kCl100k, false, false, /*ignores_merges=*/true, /*adds_bos=*/true},
    {"dbrx", kCl100k},
    {"smaug-bpe", kCl100k},
    {"qwen2", kQwen2, true},
    {"deepseek-r1-qwen", kQwen2},
    {"qwen35", kQwen35, true},
    {"tekken", kTekken, false, false, true, true},
    {"gpt-4o", kO200k},
};

absl::StatusOr<const Pre*> FindPre(kernels::AttrReader& reader) {
  const std::string name = reader.StringOr(kPre, "");
  if (!reader.ok()) return reader.status();
  const auto found = std::ranges::find(kPres, name, &Pre::name);
  if (found != std::end(kPres)) return &*found;
  return absl::UnimplementedError(absl::StrCat(
      kPre, ": expected one of ",
      absl::StrJoin(kPres, ", ",
                    [](std::string* out, const Pre& p) { absl::StrAppend(out, AbslView(p.name)); }),
      name.empty() ? ", but it is missing" : absl::StrCat(", got ", Quoted(name))));
}

Json PreTokenizerJson(const Pre& pre, bool add_prefix_space) {
  Json stages = Json::array();
  if (pre.splits_digits) stages.push_back({{"type", "Digits"}, {"individual_digits", true}});
  if (pre.pattern != nullptr) {
    stages.push_back(
        {{"type", "Split"}, {"pattern", {{"Regex", pre.pattern}}}, {"behavior", "Isolated"}});
  }
  stages.push_back({{"type", "ByteLevel"},
                    {"add_prefix_space", add_prefix_space},
                    {"use_regex", pre.pattern == nullptr}});
  return {{"type", "Sequence"}, {"pretokenizers", stages}};
}

// The vocabulary as the file lists it.
struct Tokens {
  std::vector<std::string> texts;
  std::vector<int64_t> types;  // TokenType
};

absl::StatusOr<Tokens> ReadTokens(kernels::AttrReader& reader, int64_t vocab_size) {
  Tokens tokens;
  tokens.texts = reader.Strings(kTokens);
  const auto n = static_cast<int64_t>(tokens.texts.size());
  if (reader.ok() && (n == 0 || n > vocab_size)) {
    reader.Fail(kTokens, absl::StrCat("expected 1 to ", vocab_size,
                                      " tokens, one for each row of token_embd.weight, got ", n));
  }
  tokens.types.assign(tokens.texts.size(), kNormal);
  if (reader.Has(kTypes)) {
    tokens.types = reader.IntPerLayer(kTypes, static_cast<int>(n), kNormal, kByte);
  }
  if (!reader.ok()) return reader.status();
  return tokens;
}

// Fills in the tokens. Those that stand for themselves wherever they are in a text are added
// tokens. Phi-3's skip the white space behind them, but for the ends of a text; no key says so.
void AddTokens(const Tokens& tokens, bool strips, TokenizerFile& file) {
  constexpr std::string_view kEnds[] = {"<unk>", "<s>", "<|endoftext|>"};
  Json added = Json::array();
  for (size_t id = 0; id < tokens.texts.size(); ++id) {
    const std::string& text = tokens.texts[id];
    const int64_t type = tokens.types[id];
    if (type == kUnused) continue;
    file.vocab.emplace_back(text, static_cast<int32_t>(id));
    if (type == kNormal || type == kByte) continue;
    added.push_back({{"id", id},
                     {"content", text},
                     {"special", type != kUserDefined},
                     {"normalized", false},
                     {"rstrip", strips && std::ranges::find(kEnds, text) == std::end(kEnds)}});
  }
  file.rest["added_tokens"] = added;
}

absl::Status ReadByteLevel(kernels::AttrReader& reader, const Tokens& tokens, TokenizerFile& file) {
  ASSIGN_OR_RETURN(const Pre* const pre, FindPre(reader));
  const bool add_prefix_space = reader.BoolOr("tokenizer.ggml.add_space_prefix", false);
  const std::vector<std::string> lines = reader.Strings(kMerges);
  if (!reader.ok()) return reader.status();
  absl::StatusOr<Bpe::MergeList> merges = ParseMerges(absl::StrJoin(lines, "\n"));
  if (!merges.ok()) return InContext(kMerges, merges.status());
  file.merges = *std::move(merges);
  AddTokens(tokens, /*strips=*/false, file);
  SetPreTokenizer(pre->name, add_prefix_space, file.rest);
  file.rest["decoder"] = {{"type", "ByteLevel"}};
  file.rest["model"] = {{"type", "BPE"}, {"ignore_merges", pre->ignores_merges}};
  return absl::OkStatus();
}

// Every way to make a token of two others, the token with the highest score first, as SentencePiece
// merges; of one token's ways that with the longest first part. The search is quadratic in a
// token's bytes, so that longer ones than any vocabulary is trained to have are not made by merges.
Bpe::MergeList MergesByScore(const Tokens& tokens, const std::vector<double>& scores) {
  constexpr size_t kMaxMadeBytes = 1 << 10;
  const auto may_be_made = [&tokens](size_t i) {
    return tokens.types[i] == kNormal && tokens.texts[i].size() <= kMaxMadeBytes;
  };
  absl::flat_hash_set<absl::string_view> known;
  for (size_t i = 0; i < tokens.texts.size(); ++i) {
    if (may_be_made(i)) known.insert(tokens.texts[i]);
  }
  struct Way {
    double score;
    size_t first_bytes, token;
  };
  std::vector<Way> ways;
  for (size_t i = 0; i < tokens.texts.size(); ++i) {
    if (!may_be_made(i)) continue;
    const absl::string_view text = tokens.texts[i];
    for (size_t n = 1; n < text.size(); ++n) {
      if (known.contains(text.substr(0, n)) && known.contains(text.substr(n))) {
        ways.push_back({scores[i], n, i});
      }
    }
  }
  std::ranges::sort(ways, [](const Way& a, const Way& b) {
    return std::tuple(b.score, b.first_bytes, a.token) <
           std::tuple(a.score, a.first_bytes, b.token);
  });
  Bpe::MergeList merges;
  merges.reserve(ways.size());
  for (const Way& way : ways) {
    const std::string& text = tokens.texts[way.token];
    merges.emplace_back(text.substr(0, way.first_bytes), text.substr(way.first_bytes));
  }
  return merges;
}

absl::Status ReadSentencePiece(kernels::AttrReader& reader, const Tokens& tokens,
                               TokenizerFile& file) {
  constexpr char kScores[] = "tokenizer.ggml.scores";
  constexpr double kMost = 1e30;
  const std::vector<double> zeros(tokens.texts.size(), 0);
  const std::vector<double> scores = reader.FloatsOr(kScores, zeros, -kMost, kMost);
  if (!reader.Has(kScores)) reader.Fail(kScores, "expected a list of numbers, but it is missing");
  const bool adds_space = reader.BoolOr("tokenizer.ggml.add_space_prefix", true);
  const bool is_phi3 = reader.StringOr("general.architecture", "") == "phi3";
  if (!reader.ok()) return reader.status();
  AddTokens(tokens, /*strips=*/is_phi3, file);
  file.merges = MergesByScore(tokens, scores);
  const auto replace = [](std::string_view from, std::string_view to) -> Json {
    return {{"type", "Replace"},
            {"pattern", {{"String", std::string(from)}}},
            {"content", std::string(to)}};
  };
  Json before = Json::array(),
       after = {replace(kSpace, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}};
  if (adds_space) {
    before.push_back({{"type", "Prepend"}, {"prepend", std::string(kSpace)}});
    after.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  before.push_back(replace(" ", kSpace));
  file.rest["normalizer"] = {{"type", "Sequence"}, {"normalizers", before}};
  file.rest["decoder"] = {{"type", "Sequence"}, {"decoders", after}};
  Json& model = file.rest["model"] = {{"type", "BPE"}, {"byte_fallback", true}, {"fuse_unk", true}};
  const auto unknown = std::ranges::find(tokens.types, kUnknown);
  if (unknown != tokens.types.end()) {
    model["unk_token"] = tokens.texts[static_cast<size_t>(unknown - tokens.types.begin())];
  }
  return absl::OkStatus();
}

}  // namespace

bool HasGgufTokenizer(const GgufFile& file) { return file.metadata().Has(kTokens); }

absl::StatusOr<TokenizerFile> GgufTokenizer(const GgufFile& file, int64_t vocab_size) {
  kernels::AttrReader reader(file.metadata());
  const std::string model = reader.StringOr(kModel, "");
  ASSIGN_OR_RETURN(const Tokens tokens, ReadTokens(reader, vocab_size));
  if (model != "gpt2" && model != "llama") {
    return absl::UnimplementedError(
        absl::StrCat(kModel, ": expected gpt2 or llama, got ", Quoted(model)));
  }
  TokenizerFile result;
  RETURN_IF_ERROR((model == "gpt2" ? ReadByteLevel : ReadSentencePiece)(reader, tokens, result));
  return result;
}

void SetPreTokenizer(std::string_view pre, bool add_prefix_space, Json& file) {
  const auto found = std::ranges::find(kPres, pre, &Pre::name);
  Check(found != std::end(kPres), "a pre-tokenizer has a name of ggml's");
  if (found->composes) file["normalizer"] = {{"type", "NFC"}};
  file["pre_tokenizer"] = PreTokenizerJson(*found, add_prefix_space);
}

absl::StatusOr<Json> GgufTokenizerConfig(const GgufFile& file) {
  kernels::AttrReader reader(file.metadata());
  Json config = Json::object();
  const std::string model = reader.StringOr(kModel, ""), pre = reader.StringOr(kPre, "");
  const auto known = std::ranges::find(kPres, pre, &Pre::name);
  const bool usual = model == "llama" || (known != std::end(kPres) && known->adds_bos);
  std::vector<std::string> tokens;
  if (HasGgufTokenizer(file)) tokens = reader.Strings(kTokens);
  constexpr std::string_view kRoles[][2] = {{"bos_token", "bos"},
                                            {"eos_token", "eos"},
                                            {"unk_token", "unknown"},
                                            {"pad_token", "padding"}};
  for (const auto& [field, role] : kRoles) {
    const std::string key = absl::StrCat("tokenizer.ggml.", AbslView(role), "_token_id");
    if (tokens.empty() || !reader.Has(key)) continue;
    const int64_t id = reader.Int(key, 0, static_cast<int64_t>(tokens.size()) - 1);
    config[std::string(field)] = tokens[static_cast<size_t>(id)];
  }
  for (const char* token : {"bos_token", "eos_token"}) {
    const std::string field = absl::StrCat("add_", token),
                      key = absl::StrCat("tokenizer.ggml.", field);
    const bool is_there = config.contains(token), is_usual = usual && token[0] == 'b' && is_there;
    const bool wanted = reader.BoolOr(key, is_usual);
    if (wanted && !is_there) reader.Fail(key, "is true, but no key has the id of that token");
    config[field] = wanted;
  }
  if (reader.Has(kTemplate)) {
    const auto named = [&reader](const char* name, const std::string& key) -> Json {
      return {{"name", name}, {"template", reader.StringOr(key, "")}};
    };
    Json& templates = config["chat_template"] = Json::array();
    templates.push_back(named("default", kTemplate));
    const std::string of_tools = absl::StrCat(kTemplate, ".tool_use");
    if (reader.Has(of_tools)) templates.push_back(named("tool_use", of_tools));
  }
  if (!reader.ok()) return reader.status();
  return config;
}

}  // namespace ovq::model
