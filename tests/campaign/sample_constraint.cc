// Draws random texts of constraints, tests given ones and says which tokens may follow, for tests
// in other languages.
//
//   sample_constraint [FOLDER]
//
// FOLDER: of a tokenizer.json, whose tokens masks are of, with one more behind them that ends; else
// masks are of every byte and some more tokens. Each line of the standard input is "tokens",
// answered by their bytes in hexadecimal, or
//   {"kind": "json_schema" or "regex", "text": ..., "texts": [...], "samples": n, "seed": n,
//    "masks_of": [...], "reaches_of": [{"text", "at", "tokens"}], "endings_of": [...]}
// answered by {"error": ...} or
//   {"milliseconds": of compiling, "states": of its terminals, "accepts": of each of the texts,
//    "samples": [...], "unfinished": n,
//    "masks": behind each byte of each text, in hexadecimal, 8 digits for 32 tokens,
//    "reaches": how many bytes of each token lead on behind the text's first `at` bytes,
//    "endings": of each beginning, in hexadecimal, a text of the constraint that begins so, or
//    null}
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "model/constraint/automaton.h"
#include "model/constraint/matcher.h"
#include "tests/model/constraint/tokenizer_texts.h"

namespace ovq::constraint {
namespace {

constexpr size_t kMostTokens = 3000;
constexpr size_t kCacheBytes = size_t{64} << 20;

// All bytes, and some tokens of several.
std::vector<std::string> TokenTexts() {
  std::vector<std::string> texts;
  for (int byte = 0; byte < 256; ++byte) texts.emplace_back(1, static_cast<char>(byte));
  for (const char* text :
       {"\":",  "\": ", "\", \"", "\"}", "},",    "true", "false", "null",  "  ",
        "\n  ", "{\"",  "[{",     "]}",  "12",    "0.5",  "e1",    "\\u00", "\\n",
        "ab",   "the",  "é",      "://", "2024-", "[]",   "{}"}) {
    texts.emplace_back(text);
  }
  return texts;
}

class Sampler {
 public:
  Sampler(Matcher& matcher, const Vocabulary& vocabulary, uint32_t seed)
      : matcher_(matcher), vocabulary_(vocabulary), random_(seed) {}

  // Goes on with the text to an end; false if it has none within kMostTokens, or is no beginning.
  bool Draw(std::string& text) {
    const int32_t end = vocabulary_.ends()[0];
    const std::optional<Place> begin = matcher_.Advance(matcher_.Begin(), std::string_view(text));
    if (!begin) return false;
    Place place = *begin;
    for (size_t n = 0; n < kMostTokens; ++n) {
      const auto mask = matcher_.Mask(place);
      if (mask->n_allowed == 0) return false;
      std::vector<int32_t> tokens;
      std::vector<double> weights;
      for (int32_t id = 0; id < vocabulary_.size(); ++id) {
        if (!mask->Allows(id)) continue;
        tokens.push_back(id);
        weights.push_back(Weight(id == end ? "" : vocabulary_.Text(id), n));
      }
      const int32_t token =
          tokens[std::discrete_distribution<size_t>(weights.begin(), weights.end())(random_)];
      if (token == end) return true;
      text += vocabulary_.Text(token);
      const std::optional<Place> next = matcher_.Advance(place, token);
      if (!next) return false;
      place = *next;
    }
    return false;
  }

 private:
  // Longer texts lean to their end: to tokens that close what is open.
  static double Weight(std::string_view token, size_t n) {
    const double hurry = 1.0 + static_cast<double>(n) / 20;
    if (token.empty()) return 3 * hurry;
    switch (token[0]) {
      case '"':
      case '}':
      case ']':
        return 4 * hurry;
      case '{':
      case '[':
        return 2 / (hurry * hurry);
      case ' ':
      case '\n':
        return 0.3;
      default:
        return static_cast<unsigned char>(token[0]) < 0x80 ? 1 : 0.2;
    }
  }

  Matcher& matcher_;
  const Vocabulary& vocabulary_;
  std::mt19937 random_;
};

// The masks behind each beginning of the text.
nlohmann::json Masks(Matcher& matcher, std::string_view text) {
  nlohmann::json masks = nlohmann::json::array();
  std::optional<Place> place = matcher.Begin();
  for (size_t i = 0; place && i <= text.size(); ++i) {
    std::string digits;
    for (const uint32_t word : matcher.Mask(*place)->bits)
      absl::StrAppendFormat(&digits, "%08x", word);
    masks.push_back(std::move(digits));
    if (i < text.size()) place = matcher.Advance(*place, text.substr(i, 1));
  }
  return masks;
}

nlohmann::json Reaches(Matcher& matcher, const Vocabulary& vocabulary, const nlohmann::json& task) {
  const std::string text = task.at("text");
  const auto begin =
      matcher.Advance(matcher.Begin(), std::string_view(text).substr(0, task.at("at")));
  Check(begin.has_value(), "a text of the constraint begins so");
  nlohmann::json reaches = nlohmann::json::array();
  for (const int32_t token : task.at("tokens")) {
    size_t n = 0;
    std::optional<Place> place = begin;
    for (const char c : vocabulary.Text(token)) {
      place = matcher.Advance(*place, std::string_view(&c, 1));
      if (!place) break;
      ++n;
    }
    reaches.push_back(n);
  }
  return reaches;
}

struct Vocabularies {
  std::shared_ptr<const Vocabulary> small;  // for texts that are drawn
  std::shared_ptr<const Vocabulary> tokens;
};

nlohmann::json Answer(const nlohmann::json& task, const Vocabularies& vocabularies) {
  const auto begin = std::chrono::steady_clock::now();
  Source source{
      .kind = task.at("kind") == "regex" ? Source::Kind::kRegex : Source::Kind::kJsonSchema,
      .text = task.at("text")};
  Grammar grammar;
  const absl::StatusOr<Grammar::Node> root = AddSource(source, grammar, Limits());
  if (!root.ok()) return {{"error", root.status().message()}};
  grammar.SetRoot(*root);
  const auto automaton = CompileGrammar(grammar, Limits());
  if (!automaton.ok()) return {{"error", automaton.status().message()}};
  const std::chrono::duration<double, std::milli> passed = std::chrono::steady_clock::now() - begin;

  Matcher matcher(*automaton, vocabularies.tokens, kCacheBytes);
  Matcher small(*automaton, vocabularies.small, kCacheBytes);
  nlohmann::json answer = {{"accepts", nlohmann::json::array()},
                           {"samples", nlohmann::json::array()},
                           {"milliseconds", passed.count()},
                           {"states", (*automaton)->n_states()}};
  for (const std::string text : task.value("texts", nlohmann::json::array())) {
    const std::optional<Place> place = matcher.Advance(matcher.Begin(), std::string_view(text));
    answer["accepts"].push_back(place && place->may_end());
  }
  for (const std::string text : task.value("masks_of", nlohmann::json::array())) {
    answer["masks"].push_back(Masks(matcher, text));
  }
  for (const nlohmann::json& reach : task.value("reaches_of", nlohmann::json::array())) {
    answer["reaches"].push_back(Reaches(matcher, *vocabularies.tokens, reach));
  }
  Sampler sampler(small, *vocabularies.small, task.value("seed", 1));
  for (const std::string beginning : task.value("endings_of", nlohmann::json::array())) {
    std::string text = absl::HexStringToBytes(beginning);
    const bool ends = sampler.Draw(text);
    answer["endings"].push_back(ends ? nlohmann::json(text) : nlohmann::json());
  }
  int unfinished = 0;
  for (int i = 0; i < task.value("samples", 0); ++i) {
    std::string text;
    if (sampler.Draw(text)) {
      answer["samples"].push_back(std::move(text));
    } else {
      ++unfinished;
    }
  }
  answer["unfinished"] = unfinished;
  return answer;
}

std::shared_ptr<const Vocabulary> WithEnd(std::vector<std::string> texts) {
  texts.emplace_back();
  const auto end = static_cast<int32_t>(texts.size()) - 1;
  return std::make_shared<const Vocabulary>(texts, std::vector<int32_t>{end});
}

int Run(const char* folder) {
  Vocabularies vocabularies;
  vocabularies.small = vocabularies.tokens = WithEnd(TokenTexts());
  if (folder != nullptr) {
    const auto texts = test::ReadTokenTexts(folder);
    if (!texts.ok()) {
      std::cerr << texts.status() << "\n";
      return 1;
    }
    vocabularies.tokens = WithEnd(*texts);
  }
  const auto write = [](const nlohmann::json& answer) {
    std::cout << answer.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << std::endl;
  };
  for (std::string line; std::getline(std::cin, line);) {
    if (line != "tokens") {
      write(Answer(nlohmann::json::parse(line), vocabularies));
      continue;
    }
    nlohmann::json tokens = nlohmann::json::array();
    for (int32_t id = 0; id < vocabularies.tokens->size(); ++id) {
      tokens.push_back(absl::BytesToHexString(std::string(vocabularies.tokens->Text(id))));
    }
    write(tokens);
  }
  return 0;
}

}  // namespace
}  // namespace ovq::constraint

int main(int argc, char** argv) { return ovq::constraint::Run(argc > 1 ? argv[1] : nullptr); }
