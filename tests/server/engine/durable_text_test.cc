// Texts that callers keep with sessions on disk: each stays as long as its session.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "tests/folders.h"
#include "tests/server/engine/durable.h"
#include "tests/server/engine/stepping_clock.h"
#include "tests/test_util.h"

namespace ovq::engine::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST_F(Durable, ATextStaysAsLongAsItsSession) {
  Start();
  const std::string id = Open(10), other = Open(10), without = Open(10);
  EXPECT_TRUE(engine()->sessions().PutText(id, "", "first").ok());
  EXPECT_TRUE(engine()->sessions().PutText(id, "", std::string("a\0b\n", 4)).ok());
  EXPECT_TRUE(engine()->sessions().PutText(other, "", "other").ok());
  EXPECT_TRUE(absl::IsNotFound(engine()->sessions().PutText(id, "another tenant", "x")));
  for (const bool killed : {true, false}) {
    killed ? Kill() : Start();
    EXPECT_EQ(Text(id), std::string("a\0b\n", 4));
    EXPECT_EQ(Text(other), "other");
    EXPECT_EQ(Text(without), "none");
  }
  const auto refuse = [](size_t bytes) {
    return absl::ResourceExhaustedError(std::to_string(bytes));
  };
  EXPECT_TRUE(absl::IsResourceExhausted(engine()->sessions().GetText(id, "", refuse).status()));
  EXPECT_TRUE(
      absl::IsNotFound(engine()->sessions().GetText(id, "another tenant", refuse).status()));
  EXPECT_TRUE(engine()->sessions().Delete(id, "").ok());
  ExpectNoFiles(id);
  EXPECT_TRUE(absl::IsNotFound(engine()->sessions().PutText(id, "", "x")));
}

TEST_F(Durable, ATextGoesWhenItsSessionExpires) {
  const auto ms = std::make_shared<std::atomic<int64_t>>(0);
  EngineOptions engine_options;
  engine_options.clock = StandingClock(ms);
  Start(engine_options);
  SessionOptions options;
  options.prompt = {1, 2};
  options.ttl = absl::Milliseconds(300);
  const std::string here = engine().NewSession(options).id, left = engine().NewSession(options).id;
  EXPECT_TRUE(engine()->sessions().PutText(here, "", "text").ok());
  *ms = 300;
  ExpectNoFiles(here);
  const std::string later = engine().NewSession(options).id;
  EXPECT_TRUE(engine()->sessions().PutText(later, "", "text").ok());
  Stop();
  *ms = 600;  // while no server runs
  Start(engine_options);
  ExpectNoFiles(later);
}

TEST_F(Durable, TextsOfTheOldestGoBeyondTheBudget) {
  const auto start = [this] {
    EngineOptions options;
    options.request_memory = std::make_shared<ByteBudget>(size_t{16} * 4000);
    Start(options);
  };
  start();
  std::vector<std::string> ids;
  for (int i = 0; i < 5; ++i) {
    ids.push_back(Open(5));
    EXPECT_TRUE(engine()->sessions().PutText(ids.back(), "", std::string(1000, 'x')).ok());
    absl::SleepFor(absl::Milliseconds(2));  // their ages are told in milliseconds
  }
  for (const bool restarted : {false, true}) {
    if (restarted) start();
    for (size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(Text(ids[i]) == "none", i < 3) << i;
  }
  ids.push_back(Open(5));
  EXPECT_TRUE(engine()->sessions().PutText(ids.back(), "", std::string(1000, 'x')).ok());
  EXPECT_EQ(Text(ids[3]), "none");
  EXPECT_TRUE(engine()->sessions().PutText(ids[4], "", std::string(4000, 'x')).ok());
  EXPECT_EQ(Text(ids[4]), "none");
  EXPECT_NE(Text(ids[5]), "none");
  Stop();
  EXPECT_EQ(SessionFile(ids[4], ".text"), "");
}

TEST_F(Durable, ADamagedTextHurtsNoSession) {
  Start();
  const std::string flipped = Open(10), cut = Open(10);
  for (const std::string& id : {flipped, cut}) {
    EXPECT_TRUE(engine()->sessions().PutText(id, "", "some text").ok());
  }
  Stop();
  std::fstream file(SessionFile(flipped, ".text"), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(26);
  file.put('x');
  file.close();
  std::filesystem::resize_file(SessionFile(cut, ".text"), 20);
  std::ofstream(path_ + "/0123456789abcdef0123456789abcdef.text") << "of no session";
  std::ofstream(path_ + "/" + cut + ".text.part") << "half";
  Start();
  EXPECT_EQ(SessionFile("0123456789abcdef0123456789abcdef", ".text"), "");
  EXPECT_EQ(SessionFile(cut, ".part"), "");
  for (const std::string& id : {flipped, cut}) {
    EXPECT_EQ(Text(id), "none");
    EXPECT_TRUE(engine().Run(Turn(id, {1}, 1)).status.ok());
  }
}

}  // namespace
}  // namespace ovq::engine::test
