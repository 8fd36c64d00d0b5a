#include "model/gguf/gguf_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "absl/strings/str_cat.h"
#include "tests/model/gguf/gguf_test_util.h"
#include "tests/model/model_test_util.h"

namespace ovq::model::test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::Status OpenGguf(std::string_view bytes, GgufFile& file) {
  const TempFolder folder;
  folder.Write("a.gguf", bytes);
  return GgufFile::Open(folder.file("a.gguf"), file);
}

std::string GgufProblem(std::string_view bytes) {
  GgufFile file;
  return Message(OpenGguf(bytes, file));
}

GgufWriter SmallGguf() {
  GgufWriter writer;
  writer.Key("general.architecture", "llama");
  writer.Tensor("a", {3, 2}, 0, std::string(24, '\x3f'));
  writer.Tensor("b", {32}, 8, std::string(34, '\1'));
  return writer;
}

TEST(GgufFile, HasValuesOfEveryType) {
  GgufWriter writer = SmallGguf();
  writer.Key("u8", 0, Raw<uint8_t>(200));
  writer.Key("i8", 1, Raw<int8_t>(-3));
  writer.Key("u16", 2, Raw<uint16_t>(60000));
  writer.Key("i16", 3, Raw<int16_t>(-30000));
  writer.Key("u32", 4, Raw<uint32_t>(4000000000));
  writer.Key("i32", 5, Raw<int32_t>(-5));
  writer.Key("f32", 0.25f);
  writer.Key("yes", true);
  writer.Key("u64", 10, Raw<uint64_t>(1) + "");
  writer.Key("i64", 11, Raw<int64_t>(INT64_MIN));
  writer.Key("f64", 12, Raw(0.1));
  writer.Key("beyond", 10, Raw<uint64_t>(UINT64_MAX));
  writer.List<int32_t>("ints", kI32, {1, -2});
  writer.List<float>("reals", kF32Kind, {1, 0.5});
  writer.List<bool>("bools", kBoolKind, {true, false});
  writer.List<uint64_t>("mixed", kU64, {3, UINT64_MAX, 4});
  writer.List<std::string>("texts", kTextKind, {"x", "", "\xe2\x96\x81"});
  writer.Key("nested", kListKind,
             Raw(uint32_t{kListKind}) + Raw(uint64_t{1}) + Raw(uint32_t{kU32}) + Raw(uint64_t{2}) +
                 Raw(uint32_t{7}) + Raw(uint32_t{8}));
  writer.Key("last", 7u);
  for (const uint32_t version : {2u, 3u}) {
    writer.version = version;
    GgufFile file;
    const absl::Status status = OpenGguf(writer.Bytes(), file);
    ASSERT_TRUE(status.ok()) << status;
    kernels::AttrReader reader(file.metadata());
    const auto integer = [&](const char* key) { return reader.Int(key, INT64_MIN + 1, INT64_MAX); };
    EXPECT_EQ(integer("u8"), 200);
    EXPECT_EQ(integer("i8"), -3);
    EXPECT_EQ(integer("u16"), 60000);
    EXPECT_EQ(integer("i16"), -30000);
    EXPECT_EQ(integer("u32"), 4000000000);
    EXPECT_EQ(integer("i32"), -5);
    EXPECT_EQ(integer("u64"), 1);
    EXPECT_EQ(reader.FloatOr("f32", 0, 0, 1), 0.25);
    EXPECT_EQ(reader.FloatOr("f64", 0, 0, 1), 0.1);
    EXPECT_EQ(reader.FloatOr("beyond", 0, 0, 1e30), 0x1p64);
    EXPECT_TRUE(reader.BoolOr("yes", false));
    EXPECT_THAT(reader.IntPerLayer("ints", 2, -9, 9), ElementsAre(1, -2));
    EXPECT_THAT(reader.FloatsOr("reals", {0, 0}, 0, 9), ElementsAre(1, 0.5));
    EXPECT_THAT(reader.IntPerLayer("bools", 2, 0, 1), ElementsAre(1, 0));
    EXPECT_THAT(reader.FloatsOr("mixed", {0, 0, 0}, 0, 1e30), ElementsAre(3, 0x1p64, 4));
    EXPECT_THAT(reader.Strings("texts"), ElementsAre("x", "", "\xe2\x96\x81"));
    EXPECT_FALSE(reader.Has("nested"));
    EXPECT_EQ(integer("last"), 7);
    EXPECT_TRUE(reader.ok()) << reader.status();
    EXPECT_EQ(file.tensors().size(), 2u);
    const GgufTensor& a = file.tensors().at("a");
    EXPECT_EQ(a.shape, (kernels::Shape{2, 3}));
    EXPECT_EQ(Text(a.bytes), std::string(24, '\x3f'));
    EXPECT_EQ(file.tensors().at("b").type->name, "Q8_0");
    EXPECT_TRUE(file.CheckWhole().ok());
  }
}

// The most bytes of memory that the process has had at a time.
size_t MostMemory() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<size_t>(usage.ru_maxrss) << 10;
}

// A list of booleans has a byte of the file for an element, and 8 bytes of memory.
TEST(GgufFile, LongListsTakeTheMemoryOfTheirElements) {
  constexpr size_t kElements = size_t{16} << 20;
  GgufWriter writer = SmallGguf();
  writer.Key("bools", kListKind,
             Raw(uint32_t{kBoolKind}) + Raw(uint64_t{kElements}) + std::string(kElements, '\1'));
  const TempFolder folder;
  folder.Write("a.gguf", writer.Bytes());
  const size_t before = MostMemory();
  GgufFile file;
  const absl::Status status = GgufFile::Open(folder.file("a.gguf"), file);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_LT(MostMemory() - before, 32 * kElements);
  EXPECT_TRUE(file.metadata().Has("bools"));
}

TEST(GgufFile, EveryPrefixIsRefused) {
  const std::string whole = SmallGguf().Bytes();
  const size_t last = whole.size() - 30;  // padding of the last tensor
  for (size_t n = 0; n < last; ++n) {
    const std::string problem = GgufProblem(whole.substr(0, n));
    EXPECT_THAT(problem, HasSubstr("/a.gguf: ")) << n;
  }
  EXPECT_EQ(GgufProblem(whole), "");
}

TEST(GgufFile, ErrorsNameTheKey) {
  const auto with = [](auto change) {
    GgufWriter writer = SmallGguf();
    change(writer);
    return GgufProblem(writer.Bytes());
  };
  EXPECT_THAT(with([](GgufWriter& w) { w.version = 1; }),
              HasSubstr("expected GGUF version 2 or 3, got version 1"));
  EXPECT_THAT(with([](GgufWriter& w) { w.version = 3u << 24; }), HasSubstr("a big-endian file"));
  EXPECT_THAT(with([](GgufWriter& w) { w.Key("x", 13, Raw(1)); }),
              HasSubstr("key 'x': type 13 is none of GGUF's"));
  EXPECT_THAT(with([](GgufWriter& w) { w.Key("general.architecture", 1u); }),
              HasSubstr("key 'general.architecture': given twice"));
  EXPECT_THAT(with([](GgufWriter& w) { w.Key("x", "\xff"); }), HasSubstr("key 'x': not UTF-8"));
  EXPECT_THAT(with([](GgufWriter& w) { w.Key("\xff", 1u); }), HasSubstr("not UTF-8"));
  EXPECT_THAT(
      with([](GgufWriter& w) { w.Key("x", kListKind, Raw(uint32_t{kU32}) + Raw(UINT64_MAX)); }),
      HasSubstr("truncated?"));
  EXPECT_THAT(with([](GgufWriter& w) {
                std::string deep;
                for (int i = 0; i < 20; ++i) deep += Raw(uint32_t{kListKind}) + Raw(uint64_t{1});
                w.Key("x", kListKind, deep + std::string(99, '\0'));
              }),
              HasSubstr("key 'x': lists lie more than 8 deep"));
  EXPECT_THAT(with([](GgufWriter& w) { w.Key("general.alignment", 24u); }),
              HasSubstr("general.alignment: expected a power of two, got 24"));
  EXPECT_THAT(with([](GgufWriter& w) { w.Key("general.alignment", "32"); }),
              HasSubstr("general.alignment: expected an integer"));
  EXPECT_THAT(with([](GgufWriter& w) { w.n_keys = UINT64_MAX; }), HasSubstr("a.gguf: "));
  EXPECT_THAT(with([](GgufWriter& w) { w.n_tensors = UINT64_MAX; }), HasSubstr("a.gguf: "));
}

TEST(GgufFile, ErrorsNameTheTensor) {
  const auto with = [](const std::vector<uint64_t>& dims, uint32_t type, uint64_t offset,
                       const char* name = "c") {
    GgufWriter writer = SmallGguf();
    writer.Info(name, dims, type, offset);
    writer.data += std::string(64, '\0');
    return GgufProblem(writer.Bytes());
  };
  EXPECT_EQ(with({16}, 0, 96), "");
  EXPECT_THAT(with({16}, 0, 96, "a"), HasSubstr("tensor 'a': given twice"));
  EXPECT_THAT(with({16}, 0, 96, "\xff"), HasSubstr("not UTF-8"));
  EXPECT_THAT(with({}, 0, 96), HasSubstr("tensor 'c': expected 1 to 4 dimensions, got 0"));
  EXPECT_THAT(with({1, 1, 1, 1, 1}, 0, 96), HasSubstr("expected 1 to 4 dimensions, got 5"));
  EXPECT_THAT(with({uint64_t{1} << 33, uint64_t{1} << 33}, 0, 96), HasSubstr("more elements"));
  EXPECT_THAT(with({UINT64_MAX}, 0, 96), HasSubstr("more elements"));
  EXPECT_THAT(with({17}, 0, 96), HasSubstr("tensor 'c': ends at byte 164 of the data"));
  EXPECT_THAT(with({16}, 0, uint64_t{0} - 32), HasSubstr("ends beyond any file"));
  EXPECT_THAT(with({16}, 0, 97), HasSubstr("begins at byte 97 of the data, no multiple"));
  EXPECT_THAT(with({16}, 0, 0), HasSubstr("overlaps the tensor before it"));
  EXPECT_THAT(with({33}, 8, 96), HasSubstr("rows of 33 elements are not whole blocks of Q8_0"));
  EXPECT_THAT(with({16}, 16, 96), HasSubstr("tensor 'c': expected type F32, F16, Q4_0"));
  EXPECT_THAT(with({16}, 16, 96), HasSubstr("got number 16"));
}

// A part with a tensor of 32 numbers.
GgufWriter GgufPart(uint32_t no, uint32_t count, uint32_t n_tensors, const char* tensor) {
  GgufWriter writer;
  if (no == 0) writer.Key("general.architecture", "llama");
  writer.Key("split.no", no);
  writer.Key("split.count", count);
  writer.Key("split.tensors.count", n_tensors);
  writer.Tensor(tensor, {32}, 8, std::string(34, static_cast<char>(no + 1)));
  return writer;
}

// Writes a split model of the parts as m-0000i-of-0000n.gguf and opens one of them.
std::string SplitProblem(const std::vector<GgufWriter>& parts, GgufFile& file, size_t opened = 1) {
  const TempFolder folder;
  const auto name = [&](size_t i) { return absl::StrCat("m-0000", i, "-of-00003.gguf"); };
  for (size_t i = 0; i < parts.size(); ++i) folder.Write(name(i + 1), parts[i].Bytes());
  return Message(GgufFile::Open(folder.file(name(opened)), file));
}

TEST(GgufFile, ASplitModelIsOneFile) {
  GgufFile file;
  EXPECT_EQ(
      SplitProblem({GgufPart(0, 3, 3, "a"), GgufPart(1, 3, 3, "b"), GgufPart(2, 3, 3, "c")}, file),
      "");
  EXPECT_EQ(file.tensors().size(), 3u);
  const GgufTensor& c = file.tensors().at("c");
  EXPECT_EQ(Text(c.bytes), std::string(34, '\3'));
  EXPECT_EQ(file.PartThatHolds(c.bytes), "m-00003-of-00003.gguf");
  EXPECT_EQ(file.PartThatHolds(file.tensors().at("a").bytes), "m-00001-of-00003.gguf");
  EXPECT_TRUE(file.metadata().Has("general.architecture"));
  EXPECT_TRUE(file.CheckWhole().ok());
}

TEST(GgufFile, PartsThatAreNotOfTheSetAreNamed) {
  const GgufWriter a = GgufPart(0, 3, 3, "a"), b = GgufPart(1, 3, 3, "b"),
                   c = GgufPart(2, 3, 3, "c");
  const auto problem = [](const std::vector<GgufWriter>& parts, size_t opened = 1) {
    GgufFile file;
    return SplitProblem(parts, file, opened);
  };
  EXPECT_THAT(problem({a, b}),
              AllOf(HasSubstr("m-00001-of-00003.gguf: part 3 of 3: "), HasSubstr("m-00003-of")));
  EXPECT_THAT(problem({a, b, c}, 2),
              HasSubstr("is part 2 of 3 of a model: name the first, which ends with "
                        "-00001-of-00003.gguf"));
  EXPECT_THAT(problem({a, c, b}),
              HasSubstr("m-00002-of-00003.gguf: expected part 2 of 3 with 3 tensors in all, but it "
                        "is part 3 of 3 with 3 tensors in all"));
  EXPECT_THAT(problem({a, b, GgufPart(2, 4, 3, "c")}), HasSubstr("but it is part 3 of 4"));
  EXPECT_THAT(problem({a, b, GgufPart(2, 3, 7, "c")}), HasSubstr("with 7 tensors in all"));
  GgufWriter whole;
  whole.Tensor("c", {32}, 8, std::string(34, '\1'));
  EXPECT_THAT(problem({a, b, whole}), HasSubstr("but it is part 1 of 1"));
  EXPECT_THAT(problem({a, b, GgufPart(2, 3, 3, "a")}),
              HasSubstr("m-00003-of-00003.gguf: tensor 'a': given twice"));
  EXPECT_THAT(problem({GgufPart(0, 3, 4, "a"), GgufPart(1, 3, 4, "b"), GgufPart(2, 3, 4, "c")}),
              HasSubstr("split.tensors.count is 4, but the parts have 3 tensors"));
  GgufWriter damaged = b;
  damaged.version = 1;
  EXPECT_THAT(problem({a, damaged, c}),
              HasSubstr("m-00002-of-00003.gguf: expected GGUF version 2 or 3, got version 1"));
  EXPECT_THAT(GgufProblem(a.Bytes()),
              HasSubstr("is the first of 3 parts of a model: expected a name that ends with "
                        "-00001-of-00003.gguf"));
  GgufWriter many;
  many.Key("split.count", 1001u);
  EXPECT_THAT(GgufProblem(many.Bytes()),
              HasSubstr("split.count: expected an integer in [0, 1000]"));
  EXPECT_THAT(GgufProblem(GgufPart(5, 3, 3, "a").Bytes()),
              HasSubstr("split.no: expected an integer in [0, 2]"));
}

TEST(GgufFile, ItsModelHasItsNameWithoutNumbersOfParts) {
  EXPECT_EQ(GgufModelName("/a/b-Q4_K.gguf"), "b-Q4_K");
  EXPECT_EQ(GgufModelName("b-00001-of-00012.gguf"), "b");
  EXPECT_EQ(GgufModelName("b-0001-of-00012.gguf"), "b-0001-of-00012");
  EXPECT_EQ(GgufModelName("-00001-of-00012.gguf"), "-00001-of-00012");
}

}  // namespace
}  // namespace ovq::model::test
