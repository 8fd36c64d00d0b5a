// Unguessable ids.
#include "base/random.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>
#include <vector>

namespace ovq {
namespace {

TEST(UnguessableHex, IsNeverTheSameFromAnyThread) {
  constexpr int kEach = 1000;
  std::vector<std::vector<std::string>> made(4);
  std::vector<std::thread> threads;
  for (std::vector<std::string>& mine : made) {
    threads.emplace_back([&mine] {
      for (int i = 0; i < kEach; ++i) mine.push_back(UnguessableHex());
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<std::string> all;
  for (const std::vector<std::string>& mine : made) {
    for (const std::string& id : mine) {
      EXPECT_EQ(id.size(), 32u);
      EXPECT_EQ(id.find_first_not_of("0123456789abcdef"), std::string::npos) << id;
      all.insert(id);
    }
  }
  EXPECT_EQ(all.size(), made.size() * kEach);
}

}  // namespace
}  // namespace ovq
