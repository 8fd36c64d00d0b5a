// The texts of a large vocabulary, for benchmarks of constraints.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace ovq::bench {

// Words as a trained tokenizer has them: of Latin letters, most with a space before them, and of
// characters of two to four bytes; punctuation in runs; every byte. The last has no text.
inline std::vector<std::string> SyntheticTokens(size_t size) {
  std::mt19937 random(1);
  std::vector<std::string> texts;
  for (int byte = 0; byte < 256; ++byte) texts.emplace_back(1, static_cast<char>(byte));
  const std::string letters = "etaoinshrdlucmfwypvbgkjqxzETAOINSHRDLU0123456789";
  const std::vector<std::string> marks = {"\"", "{", "}", ":", ",", "\n",
                                          " ",  "(", "[", "]", "<", "/"};
  while (texts.size() + 1 < size) {
    std::string text;
    const uint32_t kind = random() % 20;
    if (kind < 14) {
      if (random() % 2 == 0) text += ' ';
      for (uint32_t n = 2 + random() % 9; n > 0; --n) {
        text += letters[std::min(random() % letters.size(), random() % letters.size())];
      }
      if (random() % 40 == 0) text += marks[random() % marks.size()];
    } else if (kind < 16) {
      for (uint32_t n = 2 + random() % 5; n > 0; --n) text += marks[random() % marks.size()];
    } else {
      for (uint32_t n = 1 + random() % 4; n > 0; --n) {
        text += static_cast<char>(0xe4 + random() % 6);
        text += static_cast<char>(0x80 + random() % 64);
        text += static_cast<char>(0x80 + random() % 64);
      }
      if (random() % 10 == 0) text.pop_back();
    }
    texts.push_back(std::move(text));
  }
  texts.emplace_back();
  return texts;
}

}  // namespace ovq::bench
