#include "base/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <map>

namespace ovq {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

enum class Colour : uint8_t { kRed, kGreen, kBlue };

// One option of every kind.
struct Values {
  int count = 3;
  std::optional<double> rate;
  std::string listen = "here:1";
  std::string file;
  std::vector<int64_t> sizes = {1, 2};
  Colour colour = Colour::kGreen;
  size_t memory = size_t{64} << 20;
  absl::Duration pause = absl::Minutes(90);
  std::vector<std::string> words;
  bool loud = false;
  bool help = false;
};

Flags Declare(Values& v, const std::string& prefix = "") {
  Flags flags(prefix);
  flags.Add("count", "N", Number(v.count, 1, 9), "how many");
  flags.Add("rate", "R", Number(v.rate, 0.5, 100), "how often");
  flags.Heading("Places");
  flags.Add("listen", "HOST:PORT", Address(v.listen, 1), "where");
  flags.Add("my-file", "FILE", Text(v.file, "a file"), "what", "made up");
  flags.Add("sizes", "N,N,...", Integers(v.sizes, 1, 100), "how large");
  flags.Add("colour", "NAME", Choice(v.colour, {{"red", Colour::kRed}, {"green", Colour::kGreen}}),
            "of what\ncolour");
  flags.Add("memory", "SIZE", Size(v.memory, size_t{2} << 30), "how much");
  flags.Add("pause", "DURATION", Duration(v.pause, absl::Seconds(1), absl::Hours(2)), "how long");
  flags.Add("word", "TEXT",
            ReadTo([&v](const auto& word) { v.words.push_back(word); }, "a word", ParseText),
            "several");
  flags.AddFile("config", "a file");
  flags.AddSwitch("loud", v.loud, "not quiet");
  flags.AddEnd(
      "help", [&v] { v.help = true; }, "this text");
  return flags;
}

std::string ErrorText(const std::vector<std::string>& args) {
  Values values;
  return std::string(Declare(values).Read(args).message());
}

class ConfigFile {
 public:
  explicit ConfigFile(const std::string& text)
      : path_(testing::TempDir() + "flags_test_" + std::to_string(getpid())) {
    std::ofstream(path_) << text;
  }
  ~ConfigFile() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

EnvLookup Lookup(const std::map<std::string, std::string>& variables) {
  return [variables](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

TEST(Flags, BothWaysToWriteAValue) {
  Values values;
  Flags flags = Declare(values);
  const std::vector<std::string> args = {"--count",       "9",
                                         "--rate=0.5",    "--listen=[::]:65535",
                                         "--my-file",     "--odd=name",
                                         "--sizes=7,100", "--loud",
                                         "--colour=red",  "--memory=1.5K",
                                         "--pause",       "1m30s",
                                         "--word=a",      "--word=",
                                         "--word",        "b=c"};
  const absl::Status status = flags.Read(args);
  EXPECT_EQ(status.message(), "--word: expected a word, got ''");
  Values good;
  std::vector<std::string> rest = args;
  std::erase(rest, "--word=");
  ASSERT_TRUE(Declare(good).Read(rest).ok());
  EXPECT_EQ(good.count, 9);
  EXPECT_EQ(good.rate, 0.5);
  EXPECT_EQ(good.listen, "[::]:65535");
  EXPECT_EQ(good.file, "--odd=name");
  EXPECT_THAT(good.sizes, ElementsAre(7, 100));
  EXPECT_EQ(good.colour, Colour::kRed);
  EXPECT_EQ(good.memory, 1536u);
  EXPECT_EQ(good.pause, absl::Seconds(90));
  EXPECT_THAT(good.words, ElementsAre("a", "b=c"));
  EXPECT_TRUE(good.loud);
}

TEST(Flags, ErrorsNameTheFlagAndWhatItTakes) {
  EXPECT_EQ(ErrorText({"--count=0"}), "--count: expected a whole number from 1 to 9, got '0'");
  EXPECT_EQ(ErrorText({"--count=10"}), "--count: expected a whole number from 1 to 9, got '10'");
  EXPECT_EQ(ErrorText({"--count", "2x"}), "--count: expected a whole number from 1 to 9, got '2x'");
  EXPECT_EQ(ErrorText({"--count=99999999999999999999"}),
            "--count: expected a whole number from 1 to 9, got '99999999999999999999'");
  EXPECT_EQ(ErrorText({"--rate=nan"}), "--rate: expected a number from 0.5 to 100, got 'nan'");
  for (const char* address : {"host", ":1", "h:", "h:0", "h:65536", "h:x"}) {
    EXPECT_EQ(ErrorText({"--listen", address}),
              absl::StrCat("--listen: expected HOST:PORT with a port from 1 to 65535, got '",
                           address, "'"));
  }
  EXPECT_EQ(ErrorText({"--my-file="}), "--my-file: expected a file, got ''");
  EXPECT_EQ(ErrorText({"--sizes=1,,2"}),
            "--sizes: expected a whole number from 1 to 100, or several with commas, got ''");
  EXPECT_EQ(ErrorText({"--colour=Red"}), "--colour: expected red or green, got 'Red'");
  EXPECT_EQ(ErrorText({"--memory=2G"}), "--memory: expected a size below 2G, got '2G'");
  for (const char* duration : {"5", "0s", "3h", "-1s", "inf", ""}) {
    EXPECT_EQ(ErrorText({"--pause", duration}),
              absl::StrCat("--pause: expected a duration with its unit from 1s to 2h, got '",
                           duration, "'"));
  }
}

TEST(Flags, WhatIsNoFlagIsSaid) {
  EXPECT_EQ(ErrorText({"--cuont=1"}), "unknown flag --cuont; --help lists the flags");
  EXPECT_EQ(ErrorText({"stray"}), "unexpected argument 'stray'; --help lists the flags");
  EXPECT_EQ(ErrorText({"-c"}), "unexpected argument '-c'; --help lists the flags");
  EXPECT_EQ(ErrorText({"--loud=1"}), "--loud takes no value");
  EXPECT_EQ(ErrorText({"--count"}), "--count needs a value");
}

TEST(Flags, ArgumentsStandWithoutAName) {
  std::string folder, other;
  int count = 1;
  Flags flags;
  flags.AddArgument("FOLDER", Text(folder, "a folder"), "where");
  flags.AddArgument("OTHER", Text(other, "a folder"), "where else");
  flags.Add("count", "N", Number(count, 1, 9), "how many");
  const auto read = [&flags](const std::vector<std::string>& args) {
    return std::string(flags.Read(args).message());
  };
  EXPECT_EQ(read({"one", "--count", "2", "two"}), "");
  EXPECT_EQ(folder, "one");
  EXPECT_EQ(other, "two");
  EXPECT_EQ(count, 2);
  EXPECT_EQ(read({"a", "b", "c"}), "unexpected argument 'c'; --help lists the flags");
  EXPECT_EQ(read({"-c"}), "unexpected argument '-c'; --help lists the flags");
  EXPECT_EQ(read({""}), "FOLDER: expected a folder, got ''");
  EXPECT_EQ(read({"--FOLDER=x"}), "unknown flag --FOLDER; --help lists the flags");
  EXPECT_THAT(flags.Help(), StartsWith("  FOLDER\n      where\n  OTHER\n"));
}

TEST(Flags, NothingCountsAfterAnEnd) {
  for (const char* help : {"--help", "-h"}) {
    Values values;
    EXPECT_TRUE(Declare(values, "T_")
                    .Read(std::vector<std::string>{"--count=0", help, "--nonsense"},
                          Lookup({{"T_RATE", "x"}}))
                    .ok());
    EXPECT_TRUE(values.help);
  }
}

TEST(Flags, EveryValueKnowsItsOrigin) {
  const ConfigFile file("# a comment\n\n count=1 \nlisten = file:1\npause=2s\n");
  Values values;
  Flags flags = Declare(values, "T_");
  const absl::Status status =
      flags.Read(std::vector<std::string>{"--config", file.path(), "--pause=4s"},
                 Lookup({{"T_PAUSE", "3s"}, {"T_LISTEN", "env:1"}, {"T_MY_FILE", "f"}}));
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(values.count, 1);
  EXPECT_EQ(values.listen, "env:1");
  EXPECT_EQ(values.pause, absl::Seconds(4));
  std::map<std::string, std::string> said;
  for (const Setting& setting : flags.settings()) {
    said[setting.name] = setting.value + " # " + setting.origin;
  }
  EXPECT_EQ(said.size(), 9u);  // without the switches and the file
  EXPECT_EQ(said["count"], "1 # " + file.path() + ":3: count");
  EXPECT_EQ(said["listen"], "env:1 # T_LISTEN");
  EXPECT_EQ(said["my-file"], "f # T_MY_FILE");
  EXPECT_EQ(said["pause"], "4s # --pause");
  EXPECT_EQ(said["rate"], "none # default");
  EXPECT_EQ(said["memory"], "64M # default");
  EXPECT_TRUE(flags.given("count"));
  EXPECT_FALSE(flags.given("rate"));
}

// Overridden values are checked too: they would count one day.
TEST(Flags, ValuesThatLoseAreChecked) {
  Values values;
  EXPECT_EQ(Declare(values, "T_")
                .Read(std::vector<std::string>{"--count=1"}, Lookup({{"T_COUNT", "x"}}))
                .message(),
            "T_COUNT: expected a whole number from 1 to 9, got 'x'");
}

TEST(Flags, FilesAreNamedByFlagOrEnvironment) {
  const ConfigFile file("count = 2\n");
  Values values;
  ASSERT_TRUE(Declare(values, "T_").Read({}, Lookup({{"T_CONFIG", file.path()}})).ok());
  EXPECT_EQ(values.count, 2);
  EXPECT_EQ(ErrorText({"--config=/no/such"}), "--config: cannot read '/no/such'");
}

TEST(Flags, BadLinesOfAFileAreNamed) {
  const std::map<std::string, std::string> cases = {
      {"count = 1\ncuont = 2\n",
       ":2: cuont: unknown name, expected a flag of --help without its dashes"},
      {"config = other\n",
       ":1: config: unknown name, expected a flag of --help without its dashes"},
      {"loud = 1\n", ":1: loud: unknown name, expected a flag of --help without its dashes"},
      {"\n\ncount\n", ":3: count: expected name = value"},
      {"count = 0\n", ":1: count: expected a whole number from 1 to 9, got '0'"}};
  for (const auto& [text, message] : cases) {
    const ConfigFile file(text);
    EXPECT_EQ(ErrorText({"--config", file.path()}), file.path() + message);
  }
}

TEST(Flags, HelpTellsRangesDefaultsAndVariables) {
  Values values;
  const std::string help = Declare(values).Help();
  EXPECT_THAT(help, StartsWith("  --count N\n      how many\n"
                               "      a whole number from 1 to 9; default: 3\n"
                               "  --rate R\n      how often\n"
                               "      a number from 0.5 to 100; default: none\n"
                               "\nPlaces\n  --listen HOST:PORT\n"));
  EXPECT_THAT(help, HasSubstr("a file; default: made up\n"));
  EXPECT_THAT(help, HasSubstr("or several with commas; default: 1,2\n"));
  EXPECT_THAT(help, HasSubstr("      of what\n      colour\n      red or green; default: green\n"));
  EXPECT_THAT(help, HasSubstr("a size below 2G; default: 64M\n"));
  EXPECT_THAT(help, HasSubstr("a duration with its unit from 1s to 2h; default: 1h30m\n"));
  EXPECT_THAT(help, HasSubstr("  --loud\n      not quiet\n  --help\n      this text\n"));
  EXPECT_THAT(help, Not(HasSubstr("environment")));
  EXPECT_THAT(Declare(values, "T_").Help(),
              HasSubstr("default: made up; environment: T_MY_FILE\n"));
}

}  // namespace
}  // namespace ovq
