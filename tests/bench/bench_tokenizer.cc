// Speed of a tokenizer.json on one core, in CPU time.
//
//   bench_tokenizer FOLDER TEXT
//
// FOLDER has tokenizer.json (or vocab.json and merges.txt). TEXT is a file of some MB of ordinary
// text, which is encoded once, so that the cache helps only with what the text repeats. Then 10 MB
// each of letters without a blank, of one letter and of blanks. The program reports whether
// decoding the ids gives the text back, which it does unless the file's normalizer changes the
// text.
#include <time.h>

#include <cstdio>
#include <memory>
#include <random>
#include <string>

#include "base/check.h"
#include "base/files.h"
#include "model/tokenizers/bpe_tokenizer.h"
#include "tests/bench/bench_util.h"

namespace ovq::bench {
namespace {

// CPU time of this thread, which does all the work, so that other programs do not count.
double Seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void Measure(const char* name, const model::BpeTokenizer& tokenizer, const std::string& text) {
  const double begin = Seconds();
  const absl::StatusOr<std::vector<int32_t>> ids = tokenizer.Encode(text);
  const double encoding = Seconds() - begin;
  if (!ids.ok()) {
    std::printf("%-12s %s\n", name, std::string(ids.status().message()).c_str());
    return;
  }
  const double middle = Seconds();
  model::DecodeStream stream(tokenizer.decoder(), /*at_start=*/true);
  std::string decoded;
  for (int32_t id : *ids) decoded += stream.Push(*tokenizer.Token(id));
  decoded += stream.Finish();
  const double decoding = Seconds() - middle;
  const auto mb = static_cast<double>(text.size()) / 1e6;
  std::printf(
      "%-12s %6.1f MB %9zu tokens  encoded in %6.2f s, %6.1f MB/s  decoded %6.1f MB/s  %s\n", name,
      mb, ids->size(), encoding, mb / encoding, mb / decoding,
      decoded == text ? "same text" : "OTHER TEXT");
}

int Main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "expected two arguments: the folder of a tokenizer, a file of text\n");
    return 2;
  }
  const double begin = Seconds();
  const auto tokenizer = ValueOrExit(model::BpeTokenizer::Load(argv[1], int64_t{1} << 21));
  std::printf("loaded in %.2f s\n", Seconds() - begin);
  const std::string text = ValueOrExit(ReadFile(argv[2], size_t{1} << 30));
  std::mt19937 random(1);
  std::string letters(10'000'000, ' ');
  for (char& c : letters) c = static_cast<char>('a' + random() % 26);
  Measure("text", *tokenizer, text);
  Measure("letters", *tokenizer, letters);
  Measure("one letter", *tokenizer, std::string(letters.size(), 'a'));
  Measure("blanks", *tokenizer, std::string(letters.size(), ' '));
  return 0;
}

}  // namespace
}  // namespace ovq::bench

int main(int argc, char** argv) { return ovq::bench::Main(argc, argv); }
