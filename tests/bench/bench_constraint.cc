// The cost of constraints on one core, in CPU time.
//
//   bench_constraint [FOLDER ...]
//
// For the vocabulary of each folder's tokenizer.json and for a synthetic one of 150,000 tokens:
// masks that are made (cold) and that are known (warm), the way over a token (Advance), and how
// long the grammar takes to compile. A text of the grammar is drawn by masks, as a model without an
// opinion would, and each of its tokens is a sample.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/check.h"
#include "model/constraint/matcher.h"
#include "tests/bench/grammars.h"
#include "tests/bench/synthetic_vocabulary.h"
#include "tests/model/constraint/tokenizer_texts.h"

namespace ovq::bench {
namespace {

using constraint::Matcher;
using constraint::Place;
using constraint::Vocabulary;

// CPU time of this thread, so that other programs do not count.
double Seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct NamedGrammar {
  const char* name;
  std::string text;
};
const NamedGrammar kGrammars[] = {
    {"any JSON object", std::string("root ::= object") + kObjectRules},
    {"a record with counted strings", std::string("root ::= record") + kRecordRules},
    {"free text up to a marker",
     std::string(R"(root ::= text "</think>" [a-z ]{10,100})") + kTextRules},
    {"arithmetic", R"gbnf(root ::= (expr "=" ws term "\n")+
expr ::= term ([-+*/] term)*
term ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num ::= [0-9]+ ws
ws ::= [ \t]?)gbnf"},
};

double Percentile(std::vector<double>& values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return 1e6 * values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

void Measure(const NamedGrammar& named, const std::shared_ptr<const Vocabulary>& vocabulary) {
  const constraint::Limits limits;
  const double begin = Seconds();
  constraint::Grammar grammar;
  const auto root = constraint::AddGbnf(named.text, grammar, limits);
  Check(root.ok(), "the grammar parses");
  grammar.SetRoot(*root);
  const auto automaton = constraint::CompileGrammar(grammar, limits);
  Check(automaton.ok(), "the grammar compiles");
  const double compiled = Seconds() - begin;
  Matcher matcher(*automaton, vocabulary, size_t{256} << 20);
  std::vector<double> cold, warm, advances;
  std::mt19937 random(2);
  size_t most_bytes = 0;
  for (int text = 0; text < 40; ++text) {
    Place place = matcher.Begin();
    for (int step = 0; step < 100 && place.may_go_on(); ++step) {
      const int64_t n_masks = matcher.n_masks_computed();
      double from = Seconds();
      const auto mask = matcher.Mask(place);
      (matcher.n_masks_computed() > n_masks ? cold : warm).push_back(Seconds() - from);
      auto token = static_cast<int32_t>(random() % vocabulary->size());
      while (!mask->Allows(token) || vocabulary->Text(token).empty()) {
        token = (token + 1) % static_cast<int32_t>(vocabulary->size());
      }
      from = Seconds();
      place = *matcher.Advance(place, token);
      advances.push_back(Seconds() - from);
      most_bytes = std::max(most_bytes, matcher.bytes());
    }
  }
  std::printf(
      "  %-30s compiled in %6.2f ms; masks: %5zu cold, p50 %7.1f p99 %7.1f us; warm p50 %5.2f "
      "p99 %5.2f us; Advance p50 %5.2f p99 %6.2f us; cache %.1f MB\n",
      named.name, 1e3 * compiled, cold.size(), Percentile(cold, 0.5), Percentile(cold, 0.99),
      Percentile(warm, 0.5), Percentile(warm, 0.99), Percentile(advances, 0.5),
      Percentile(advances, 0.99), static_cast<double>(most_bytes) / 1e6);
}

void MeasureAll(const char* name, const std::shared_ptr<const Vocabulary>& vocabulary,
                double seconds) {
  std::printf("%s: %lld tokens, %zu nodes, %.1f MB, made in %.2f s\n", name,
              static_cast<long long>(vocabulary->size()), vocabulary->nodes().size(),
              static_cast<double>(vocabulary->bytes()) / 1e6, seconds);
  for (const NamedGrammar& grammar : kGrammars) Measure(grammar, vocabulary);
}

int Main(int argc, char** argv) {
  double begin = Seconds();
  const auto synthetic = std::make_shared<const Vocabulary>(SyntheticTokens(150'000),
                                                            std::vector<int32_t>{150'000 - 1});
  MeasureAll("synthetic", synthetic, Seconds() - begin);
  for (int i = 1; i < argc; ++i) {
    const auto texts = constraint::test::ReadTokenTexts(argv[i]);
    if (!texts.ok()) {
      std::fprintf(stderr, "%s\n", texts.status().ToString().c_str());
      return 1;
    }
    begin = Seconds();
    const auto vocabulary = std::make_shared<const Vocabulary>(*texts, std::vector<int32_t>{});
    MeasureAll(argv[i], vocabulary, Seconds() - begin);
  }
  return 0;
}

}  // namespace
}  // namespace ovq::bench

int main(int argc, char** argv) { return ovq::bench::Main(argc, argv); }
