// Draws random texts of constraints and tests given ones, for tests in other languages. Each line
// of the standard input is "tokens" or {"kind": "json_schema" or "regex", "text": ..., "texts":
// [...], "masks_of": [...], "samples": n, "seed": n}; each line of the output {"error": ...} or
// {"accepts": [...], "samples": [...], "unfinished": n, "milliseconds": of compiling, "states": of
// its terminals}.
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "model/constraint/automaton.h"
#include "model/constraint/matcher.h"

namespace ovq::constraint {
namespace {

constexpr size_t kMostTokens = 3000;
constexpr size_t kCacheBytes = size_t{64} << 20;

// All bytes, and some tokens of several; the last one ends.
std::vector<std::string> TokenTexts() {
  std::vector<std::string> texts;
  for (int byte = 0; byte < 256; ++byte) texts.emplace_back(1, static_cast<char>(byte));
  for (const char* text :
       {"\":",  "\": ", "\", \"", "\"}", "},",    "true", "false", "null",  "  ",
        "\n  ", "{\"",  "[{",     "]}",  "12",    "0.5",  "e1",    "\\u00", "\\n",
        "ab",   "the",  "é",      "://", "2024-", "[]",   "{}"}) {
    texts.emplace_back(text);
  }
  texts.emplace_back();
  return texts;
}

class Sampler {
 public:
  Sampler(Matcher& matcher, const Vocabulary& vocabulary, uint32_t seed)
      : matcher_(matcher), vocabulary_(vocabulary), random_(seed) {}

  // False if the text does not end within kMostTokens.
  bool Draw(std::string& text) {
    const int32_t end = vocabulary_.ends()[0];
    Place place = matcher_.Begin();
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

// The tokens that are allowed behind each beginning of the text, whose tokens are its bytes.
nlohmann::json Masks(Matcher& matcher, const Vocabulary& vocabulary, std::string_view text) {
  nlohmann::json masks = nlohmann::json::array();
  std::optional<Place> place = matcher.Begin();
  for (size_t i = 0; place && i <= text.size(); ++i) {
    const auto mask = matcher.Mask(*place);
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < vocabulary.size(); ++id) {
      if (mask->Allows(id)) allowed.push_back(id);
    }
    masks.push_back(std::move(allowed));
    if (i < text.size()) place = matcher.Advance(*place, static_cast<uint8_t>(text[i]));
  }
  return masks;
}

nlohmann::json Answer(const nlohmann::json& task, std::shared_ptr<const Vocabulary> vocabulary) {
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

  Matcher matcher(*automaton, vocabulary, kCacheBytes);
  nlohmann::json answer = {{"accepts", nlohmann::json::array()},
                           {"samples", nlohmann::json::array()},
                           {"milliseconds", passed.count()},
                           {"states", (*automaton)->n_states()}};
  for (const std::string text : task.value("texts", nlohmann::json::array())) {
    const std::optional<Place> place = matcher.Advance(matcher.Begin(), std::string_view(text));
    answer["accepts"].push_back(place && place->may_end());
  }
  for (const std::string text : task.value("masks_of", nlohmann::json::array())) {
    answer["masks"].push_back(Masks(matcher, *vocabulary, text));
  }
  Sampler sampler(matcher, *vocabulary, task.value("seed", 1));
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

void Run() {
  const std::vector<std::string> texts = TokenTexts();
  const auto end = static_cast<int32_t>(texts.size()) - 1;
  const auto vocabulary = std::make_shared<const Vocabulary>(texts, std::vector<int32_t>{end});
  for (std::string line; std::getline(std::cin, line);) {
    if (line == "tokens") {  // those of several bytes, and the end
      std::cout << nlohmann::json(std::vector(texts.begin() + 256, texts.end()))
                       .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
                << std::endl;
      continue;
    }
    std::cout << Answer(nlohmann::json::parse(line), vocabulary)
                     .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
              << std::endl;
  }
}

}  // namespace
}  // namespace ovq::constraint

int main() {
  ovq::constraint::Run();
  return 0;
}
