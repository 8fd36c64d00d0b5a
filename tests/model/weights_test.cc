#include "model/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/problems.h"
#include "tests/model/model_test_util.h"

namespace ovq::model::test {
namespace {

absl::StatusOr<Weights> OpenWeights(const std::string& folder) {
  Weights weights;
  const absl::Status status = Weights::Open(folder, weights);
  if (!status.ok()) return status;
  return weights;
}

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::string_view kTwoTensors =
    R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
    R"("b":{"dtype":"BF16","shape":[2],"data_offsets":[8,12]}})";

// Pads with spaces, as writers do, so that the data begins at a multiple of 8.
std::string Padded(std::string_view header) {
  return std::string(header) + std::string((8 - header.size() % 8) % 8, ' ');
}

std::string Small() { return SafetensorsBytes(Padded(kTwoTensors), std::string(12, '\x3f')); }

std::vector<std::string> Problems(const absl::Status& status) {
  std::vector<std::string> messages;
  for (const absl::Status& problem : SplitProblems(status)) messages.push_back(Message(problem));
  return messages;
}

absl::Status OpenBytes(const std::string& bytes) {
  const TempFolder folder;
  folder.Write("model.safetensors", bytes);
  return OpenSafetensors(folder.file("model.safetensors")).status();
}

void ExpectDamaged(const std::string& bytes, const std::string& text) {
  const absl::Status status = OpenBytes(bytes);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(Message(status), HasSubstr(text));
  EXPECT_THAT(Message(status), HasSubstr("model.safetensors"));
}

void ExpectBadHeader(std::string_view header, size_t data_bytes, const std::string& text) {
  ExpectDamaged(SafetensorsBytes(Padded(header), std::string(data_bytes, '\0')), text);
}

TEST(Safetensors, ReadsTensors) {
  const TempFolder folder;
  folder.Write("model.safetensors", Small());
  const auto file = OpenSafetensors(folder.file("model.safetensors"));
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ(file->tensors().size(), 2u);
  const StoredTensor& a = file->tensors().at("a");
  EXPECT_EQ(a.dtype, "F32");
  EXPECT_EQ(a.shape, (kernels::Shape{2, 1}));
  EXPECT_EQ(file->tensors().at("b").dtype, "BF16");
  EXPECT_EQ(Text(a.bytes), std::string(8, '\x3f'));
}

// The types that the format defines, and one that it does not yet.
TEST(Safetensors, ReadsTensorsOfEveryType) {
  const std::pair<const char*, int> kBits[] = {
      {"BOOL", 8},    {"U8", 8},          {"I8", 8},         {"F8_E4M3", 8}, {"F8_E5M2", 8},
      {"F8_E8M0", 8}, {"F4", 4},          {"F6_E2M3", 6},    {"F6_E3M2", 6}, {"I16", 16},
      {"U16", 16},    {"F16", 16},        {"BF16", 16},      {"I32", 32},    {"U32", 32},
      {"F32", 32},    {"F64", 64},        {"I64", 64},       {"U64", 64},    {"C64", 64},
      {"NEW", 16},    {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}};
  for (const auto& [dtype, bits] : kBits) {
    const auto header = [&](int64_t elements, int64_t bytes) {
      return absl::StrCat(R"({"a":{"dtype":")", dtype, R"(","shape":[)", elements,
                          R"(],"data_offsets":[0,)", bytes, "]}}");
    };
    for (const int64_t elements : {0, 4}) {
      const int64_t n = elements * bits / 8;
      const TempFolder folder;
      folder.Write("x", SafetensorsBytes(header(elements, n), std::string(n, 'x')));
      const auto file = OpenSafetensors(folder.file("x"));
      ASSERT_TRUE(file.ok()) << file.status();
      EXPECT_EQ(file->tensors().at("a").dtype, dtype);
      EXPECT_EQ(file->tensors().at("a").shape, kernels::Shape{elements});
      EXPECT_EQ(Text(file->tensors().at("a").bytes), std::string(n, 'x'));
    }
    if (std::string(dtype) != "NEW")
      ExpectBadHeader(header(4, 1), 1, dtype + std::string("[4], got 1"));
  }
  ExpectBadHeader(R"({"a":{"dtype":"F4","shape":[1],"data_offsets":[0,1]}})", 1,
                  "expected whole bytes for F4[1], got 1");
}

TEST(Safetensors, AcceptsScalarsEmptyTensorsAndEmptyFiles) {
  EXPECT_TRUE(OpenBytes(SafetensorsBytes("{}", "")).ok());
  EXPECT_TRUE(OpenBytes(SafetensorsBytes(R"({"__metadata__":null})", "")).ok());
  const std::string header = R"({"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
                             R"("e":{"dtype":"F32","shape":[0,7],"data_offsets":[0,0]}})";
  const absl::Status status = OpenBytes(SafetensorsBytes(Padded(header), std::string(4, 'x')));
  EXPECT_TRUE(status.ok()) << status;
}

// Vision convolutions have five dimensions: unused here, but they may be present.
TEST(Safetensors, FoldsTheLastOfManyDimensions) {
  const std::string header = R"({"a":{"dtype":"F32","shape":[2,1,1,3,2],"data_offsets":[0,48]},)"
                             R"("b":{"dtype":"F32","shape":[1,0,1,1099511627776,1099511627776],)"
                             R"("data_offsets":[48,48]}})";
  const TempFolder folder;
  folder.Write("x", SafetensorsBytes(Padded(header), std::string(48, '\0')));
  const auto file = OpenSafetensors(folder.file("x"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->tensors().at("a").shape, (kernels::Shape{2, 1, 1, 6}));
  EXPECT_EQ(file->tensors().at("b").shape.elements(), 0);
}

TEST(Safetensors, RefusesDamagedHeaders) {
  ExpectDamaged("", "not even a header's length");
  ExpectDamaged(std::string(8, '\xff'), "at most 100000000");
  ExpectDamaged(std::string("\x03\0\0\0\0\0\0\0{}", 10),
                "expected safetensors, got a header of 3 bytes in a file of 10");
  ExpectBadHeader("[]", 0, "not a JSON object");
  ExpectBadHeader("{", 0, "not valid JSON");
  ExpectBadHeader("{\"\xff\":1}", 0, "not valid JSON");
  ExpectBadHeader(std::string(5000, '['), 0, "nested");
  ExpectBadHeader(R"({"__metadata__":{"a":1}})", 0, "__metadata__");
  ExpectBadHeader(R"({"a":1})", 0, "tensor 'a': its header entry");
  ExpectBadHeader(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                  R"("a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                  8, "duplicate key 'a'");
}

TEST(Safetensors, RefusesBadEntries) {
  const auto entry = [](std::string_view dtype, std::string_view shape, std::string_view offsets) {
    return absl::StrCat(R"({"a":{"dtype":)", std::string(dtype), R"(,"shape":)", std::string(shape),
                        R"(,"data_offsets":)", std::string(offsets), "}}");
  };
  ExpectBadHeader(entry("7", "[1]", "[0,4]"), 4, "dtype is not a string");
  ExpectBadHeader(entry("\"a b\"", "[1]", "[0,8]"), 8, "dtype 'a b' is not a name");
  ExpectBadHeader(entry("\"I64\"", "[2]", "[0,4]"), 4, "expected 16 bytes for I64[2], got 4");
  ExpectBadHeader(entry("\"F32\"", "4", "[0,4]"), 4, "shape is not a list");
  ExpectBadHeader(entry("\"F32\"", "[-1]", "[0,4]"), 4, "non-negative");
  ExpectBadHeader(entry("\"F32\"", "[1.5]", "[0,4]"), 4, "non-negative");
  ExpectBadHeader(entry("\"F32\"", "[4294967296,4294967296]", "[0,4]"), 4, "more elements");
  ExpectBadHeader(entry("\"F32\"", "[18446744073709551615]", "[0,4]"), 4, "non-negative");
  ExpectBadHeader(entry("\"F32\"", "[1]", "[0]"), 4, "data_offsets");
  ExpectBadHeader(entry("\"F32\"", "[1]", "[0,-4]"), 4, "data_offsets");
  ExpectBadHeader(entry("\"F32\"", "[1]", "[4,0]"), 4, "backwards");
  ExpectBadHeader(entry("\"F32\"", "[2]", "[0,8]"), 4, "truncated");
  ExpectBadHeader(entry("\"F32\"", "[2]", "[0,4]"), 4, "expected 8 bytes for F32[2], got 4");
  ExpectBadHeader(entry("\"F32\"", "[1]", "[4,8]"), 8, "hole of 4 bytes");
  ExpectBadHeader(entry("\"F32\"", "[1]", "[0,4]"), 8, "4 bytes after the last tensor");
}

TEST(Safetensors, RefusesOverlap) {
  ExpectBadHeader(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                  R"("b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
                  12, "tensor 'b': overlaps");
}

TEST(Safetensors, RefusesWhatIsNoFile) {
  const TempFolder folder;
  EXPECT_EQ(OpenSafetensors(folder.file("none")).status().code(), absl::StatusCode::kNotFound);
  std::filesystem::create_directory_symlink(folder.path(), folder.file("link"));
  EXPECT_THAT(Message(OpenSafetensors(folder.file("link")).status()),
              HasSubstr("not a regular file"));
  ASSERT_EQ(mkfifo(folder.file("pipe").c_str(), 0600), 0);
  EXPECT_THAT(Message(OpenSafetensors(folder.file("pipe")).status()),
              HasSubstr("not a regular file"));
}

// Opens a file with an arbitrary header and expects DataLoss, or tensors that cover the bytes after
// the header. True if it opened.
bool OpensWhole(const TempFolder& folder, const std::string& name, const std::string& bytes) {
  folder.Write(name, bytes);
  const auto file = OpenSafetensors(folder.file(name));
  if (!file.ok()) {
    EXPECT_EQ(file.status().code(), absl::StatusCode::kDataLoss) << file.status();
    return false;
  }
  std::map<const std::byte*, size_t> parts;  // by address
  for (const auto& [unused, tensor] : file->tensors()) {
    if (!tensor.bytes.empty()) parts.emplace(tensor.bytes.data(), tensor.bytes.size());
  }
  std::string data;
  for (const auto& [begin, size] : parts) data.append(Text({begin, size}));
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  EXPECT_EQ(data, bytes.substr(sizeof(header_bytes) + header_bytes)) << bytes;
  return true;
}

TEST(Safetensors, EveryTruncationIsAnError) {
  const std::string whole = Small();
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    EXPECT_EQ(OpenBytes(whole.substr(0, bytes)).code(), absl::StatusCode::kDataLoss) << bytes;
  }
}

// A header of two tensors that is valid except for their random places, over 12 bytes of data.
std::string RandomPlaces(std::mt19937& random) {
  std::string header = "{";
  for (const char* name : {"a", "b"}) {
    const bool wide = random() % 2 == 0;
    const uint64_t n = random() % 4, begin = random() % 7 * 2, end = begin + n * (wide ? 4 : 2);
    absl::StrAppend(&header, *name == 'a' ? "" : ",", "\"", name, "\":{\"dtype\":\"",
                    wide ? "F32" : "BF16", "\",\"shape\":[", n, "],\"data_offsets\":[", begin, ",",
                    end, "]}");
  }
  return SafetensorsBytes(Padded(header + "}"), "0123456789ab");
}

TEST(Safetensors, RandomHeadersAreRefusedOrReadWhatTheySay) {
  std::mt19937 random(20240607);
  const std::string whole = Small();
  const size_t header_end = whole.size() - 12;
  const TempFolder folder;
  int n_opened[2] = {};
  constexpr int kTrials = 2000;
  for (int trial = 0; trial < 2 * kTrials; ++trial) {
    std::string bytes = trial < kTrials ? whole : RandomPlaces(random);
    const int flips = trial < kTrials ? 1 + static_cast<int>(random() % 3) : 0;
    // Printable characters first, which leave more of the JSON valid for later checks, then any
    // byte.
    for (int i = 0; i < flips; ++i) {
      bytes[random() % header_end] = static_cast<char>(i < 2 ? ' ' + random() % 95 : random());
    }
    const std::string name = absl::StrCat(trial, ".safetensors");
    n_opened[trial / kTrials] += OpensWhole(folder, name, bytes) ? 1 : 0;
  }
  for (int n : n_opened) {
    EXPECT_GT(n, 10);
    EXPECT_LT(n, kTrials / 2);
  }
}

TEST(Weights, GetTensorChecksNameShapeAndType) {
  const TempFolder folder;
  folder.Write("model.safetensors",
               SafetensorsBytes(Padded(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                                       R"("i":{"dtype":"I32","shape":[1],"data_offsets":[8,12]}})"),
                                std::string(12, '\0')));
  auto weights = OpenWeights(folder.path());
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ(weights->elements(), 3);
  EXPECT_EQ(weights->GetTensor("none", {2}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Message(weights->GetTensor("a", {3}).status()),
            "model.safetensors: a: expected [3], got [2]");
  EXPECT_EQ(Message(weights->GetTensor("i", {1}).status()),
            "model.safetensors: i: expected F32, BF16 or F16, got I32");
  EXPECT_TRUE(weights->GetTensor("a", {2}).ok());
  EXPECT_TRUE(weights->CheckAllUsed([](std::string_view) { return false; }).ok());
}

// Infinities and NaNs of each type, at either end of the block that is tested at once, beside the
// largest finite number.
TEST(Weights, GetTensorRefusesWhatIsNotFinite) {
  struct Case {
    std::string type;
    uint32_t bits, largest;
    std::string shown;
  };
  const std::vector<Case> cases = {
      {"F32", 0x7f800000, 0x7f7fffff, "inf"}, {"F32", 0xff800000, 0xff7fffff, "-inf"},
      {"F32", 0x7f800001, 0x7f7fffff, "nan"}, {"BF16", 0x7f80, 0x7f7f, "inf"},
      {"BF16", 0xff80, 0xff7f, "-inf"},       {"BF16", 0x7fc0, 0x7f7f, "nan"},
      {"F16", 0x7c00, 0x7bff, "inf"},         {"F16", 0xfc00, 0xfbff, "-inf"},
      {"F16", 0x7c01, 0x7bff, "nan"}};
  constexpr int64_t kRows = 3, kColumns = 3000;
  for (const Case& one : cases) {
    const size_t size = one.type == "F32" ? 4 : 2;
    for (const int64_t at : {int64_t{0}, int64_t{4095}, int64_t{4096}, kRows * kColumns - 1}) {
      std::string data(kRows * kColumns * size, '\0');
      const auto set = [&](int64_t element, uint32_t bits) {
        std::memcpy(data.data() + static_cast<size_t>(element) * size, &bits, size);
      };
      const auto take = [&] {
        const TempFolder folder;
        const std::string header =
            absl::StrCat(R"({"a":{"dtype":")", one.type, R"(","shape":[3,3000],"data_offsets":[0,)",
                         data.size(), "]}}");
        folder.Write("model.safetensors", SafetensorsBytes(Padded(header), data));
        absl::StatusOr<Weights> weights = OpenWeights(folder.path());
        EXPECT_TRUE(weights.ok()) << weights.status();
        return weights->GetTensor("a", {kRows, kColumns}).status();
      };
      set(at, one.largest);
      EXPECT_TRUE(take().ok()) << one.type;
      set(kRows * kColumns - 1, one.bits);
      set(at, one.bits);
      const absl::Status status = take();
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
      EXPECT_THAT(Message(status),
                  HasSubstr(absl::StrCat("model.safetensors: a: expected finite numbers, got ")));
      EXPECT_THAT(Message(status), HasSubstr(absl::StrCat(one.shown, " at [", at / kColumns, ", ",
                                                          at % kColumns, "]")));
    }
  }
}

// Copying over a file truncates it first. Reading on gives zeros and no signal, and CheckWhole
// fails.
TEST(Weights, TensorsAreMadeOfOthersAtLoad) {
  const TempFolder folder;
  folder.Write("model.safetensors", Small());
  auto weights = OpenWeights(folder.path());
  ASSERT_TRUE(weights.ok()) << weights.status();
  constexpr int64_t kRows = 200, kWidth = 3;  // several calls
  const auto value = [](int64_t i) { return 1 + std::ldexp(static_cast<float>(i), -12); };
  int64_t n_written = 0, bad = -1;
  weights->Add("made", {.shape = {kRows, kWidth},
                        .parts = {"a", "b"},
                        .write = [&](int64_t first, std::span<float> rows) {
                          n_written += static_cast<int64_t>(rows.size());
                          for (size_t i = 0; i < rows.size(); ++i) {
                            const int64_t at = first * kWidth + static_cast<int64_t>(i);
                            rows[i] = at == bad ? NAN : value(at);
                          }
                        }});
  ASSERT_TRUE(weights->Has("made"));
  const auto message = [&](const kernels::Shape& shape) {
    return Message(weights->GetTensor("made", shape).status());
  };
  EXPECT_THAT(message({3, 200}), HasSubstr("made: expected [3, 200], got [200, 3]"));
  bad = 500;
  EXPECT_THAT(message({kRows, kWidth}),
              HasSubstr("model.safetensors: made: expected finite numbers, got nan at [166, 2]"));
  bad = -1;
  for (const kernels::DType dtype : {kernels::DType::kF32, kernels::DType::kBF16}) {
    weights->SetMadeDType(dtype);
    n_written = 0;
    const auto tensor = weights->GetTensor("made", {kRows, kWidth});
    ASSERT_TRUE(tensor.ok()) << tensor.status();
    EXPECT_EQ(tensor->dtype, dtype);
    for (int64_t i = 0; i < kRows * kWidth; ++i) {
      const float rounded = kernels::ToFloat(kernels::RoundToBF16(value(i)));
      EXPECT_EQ(kernels::FloatAt(*tensor, i), dtype == kernels::DType::kF32 ? value(i) : rounded);
    }
    EXPECT_EQ(weights->GetTensor("made", {kRows, kWidth})->data, tensor->data);  // made once
    EXPECT_EQ(n_written, kRows * kWidth);
    weights->FreeMade();
  }
  EXPECT_TRUE(weights->CheckAllUsed([](std::string_view) { return false; }).ok());
}

TEST(Weights, AFileThatIsCutShortWhileItIsReadIsAnError) {
  constexpr int64_t kElements = 1 << 20;
  const TempFolder folder;
  const std::string header = absl::StrCat(R"({"a":{"dtype":"F32","shape":[)", kElements,
                                          R"(],"data_offsets":[0,)", 4 * kElements, "]}}");
  const std::string bytes = SafetensorsBytes(Padded(header), std::string(4 * kElements, '\x3f'));
  const std::string path = folder.file("model.safetensors");
  for (const uintmax_t left : {uintmax_t{0}, uintmax_t{5000}, uintmax_t{2} << 20}) {
    folder.Write("model.safetensors", bytes);
    absl::StatusOr<Weights> weights = OpenWeights(folder.path());
    ASSERT_TRUE(weights.ok()) << weights.status();
    std::filesystem::resize_file(path, left);
    const absl::StatusOr<kernels::TensorView> tensor = weights->GetTensor("a", {kElements});
    ASSERT_TRUE(tensor.ok()) << tensor.status();
    EXPECT_EQ(tensor->as<float>()[kElements - 1], 0);
    const absl::Status status = weights->CheckWhole();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(Message(status),
                HasSubstr("model.safetensors: was cut short, or written, while it"));
  }
}

TEST(Weights, SignalsOfOtherMemoryStayWhatTheyAre) {
  const TempFolder folder;
  folder.Write("model.safetensors", Small());
  const absl::StatusOr<Weights> weights = OpenWeights(folder.path());
  ASSERT_TRUE(weights.ok());
  EXPECT_DEATH(raise(SIGBUS), "");
}

TEST(Weights, TensorsThatNobodyAskedForAreAllNamed) {
  const TempFolder folder;
  folder.Write("model.safetensors", Small());
  const auto weights = OpenWeights(folder.path());
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_THAT(Problems(weights->CheckAllUsed([](std::string_view) { return false; })),
              ElementsAre(HasSubstr("model.safetensors: tensor 'a' [2, 1]: no part of the model"),
                          HasSubstr("tensor 'b' [2]")));
  EXPECT_TRUE(weights->CheckAllUsed([](std::string_view) { return true; }).ok());
}

TEST(Weights, WhatCanBeReadIsThereAndTheRestIsTold) {
  const TempFolder folder;
  folder.Write("model.safetensors",
               SafetensorsBytes(Padded(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                                       R"("b":{"dtype":"I64","shape":[1],"data_offsets":[4,8]},)"
                                       R"("c":{"dtype":"F32","shape":[3],"data_offsets":[8,20]},)"
                                       R"("d":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})"),
                                std::string(16, '\0')));
  Weights weights;
  EXPECT_THAT(Problems(Weights::Open(folder.path(), weights)),
              ElementsAre(HasSubstr("'b': expected 8 bytes"), HasSubstr("'c': ends at byte 20"),
                          HasSubstr("'d': overlaps")));
  EXPECT_TRUE(weights.GetTensor("a", {1}).ok());
  // GetTensor repeats Open's message, so that it appears once among all problems.
  EXPECT_THAT(Message(weights.GetTensor("b", {1}).status()),
              HasSubstr("model.safetensors: tensor 'b'"));
  EXPECT_THAT(Message(weights.GetTensor("e", {1}).status()), HasSubstr("'e' is missing"));
}

TEST(Weights, WithoutAFileNoTensorIsMissing) {
  const TempFolder folder;
  Weights weights;
  const absl::Status status = Weights::Open(folder.path(), weights);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(weights.GetTensor("a", {1}).status(), status);
}

TEST(Weights, FingerprintSeesNamesTypesShapesAndData) {
  const auto fingerprint = [](std::string_view name, std::string_view dtype, std::string_view shape,
                              char fill) {
    const TempFolder folder;
    const std::string header =
        absl::StrCat("{\"", std::string(name), "\":{\"dtype\":\"", std::string(dtype),
                     "\",\"shape\":", std::string(shape), ",\"data_offsets\":[0,8]}}");
    folder.Write("model.safetensors", SafetensorsBytes(Padded(header), std::string(8, fill)));
    const auto weights = OpenWeights(folder.path());
    Check(weights.ok(), "a good file");
    return weights->Fingerprint();
  };
  const std::string base = fingerprint("a", "F32", "[2,1]", 'x');
  EXPECT_EQ(base.size(), 64u);
  EXPECT_EQ(base, fingerprint("a", "F32", "[2,1]", 'x'));
  EXPECT_NE(base, fingerprint("b", "F32", "[2,1]", 'x'));
  EXPECT_NE(base, fingerprint("a", "BF16", "[4,1]", 'x'));
  EXPECT_NE(base, fingerprint("a", "F32", "[1,2]", 'x'));
  EXPECT_NE(base, fingerprint("a", "F32", "[2,1]", 'y'));
}

// A file says the same wherever its header ends, so its tensors begin at any address.
TEST(Weights, AlignmentDecidesNothing) {
  const float value = 1.5f;
  std::string data(8, '\0');
  std::memcpy(data.data(), &value, sizeof(value));
  std::set<std::string> fingerprints;
  for (int blanks = 0; blanks < 8; ++blanks) {
    const auto open = [&](uint32_t second) {
      std::memcpy(data.data() + 4, &second, sizeof(second));
      const TempFolder folder;
      folder.Write("model.safetensors",
                   SafetensorsBytes(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})" +
                                        std::string(blanks, ' '),
                                    data));
      return OpenWeights(folder.path()).value();
    };
    Weights weights = open(0);
    fingerprints.insert(weights.Fingerprint());
    EXPECT_TRUE(weights.GetTensor("a", {2}).ok());
    Weights infinite = open(0x7f800000);
    EXPECT_THAT(Message(infinite.GetTensor("a", {2}).status()), HasSubstr("got inf at [1]"));
  }
  EXPECT_EQ(fingerprints.size(), 1u);
}

class Shards : public ::testing::Test {
 protected:
  Shards() {
    folder_.Write("one.safetensors", OneTensor("a"));
    folder_.Write("two.safetensors", OneTensor("b"));
  }
  static std::string OneTensor(std::string_view name) {
    return SafetensorsBytes(
        Padded(absl::StrCat("{\"", std::string(name),
                            R"(":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})")),
        std::string(4, '\0'));
  }
  absl::Status OpenWith(std::string_view weight_map) const {
    folder_.Write("model.safetensors.index.json",
                  absl::StrCat("{\"metadata\":{},\"weight_map\":", std::string(weight_map), "}"));
    return OpenWeights(folder_.path()).status();
  }
  TempFolder folder_;
};

TEST_F(Shards, OpensWhatTheIndexLists) {
  const absl::Status status = OpenWith(R"({"a":"one.safetensors","b":"two.safetensors"})");
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(Shards, RefusesIndexesThatDoNotFit) {
  EXPECT_THAT(Message(OpenWith(R"({"a":"one.safetensors","b":"none.safetensors"})")),
              HasSubstr("none.safetensors: No such file"));
  EXPECT_THAT(Message(OpenWith(R"({"a":"one.safetensors","c":"two.safetensors"})")),
              HasSubstr("two.safetensors: tensor 'b': is not listed"));
  EXPECT_THAT(Message(OpenWith(R"({"a":"one.safetensors","c":"one.safetensors"})")),
              HasSubstr("tensor 'c': is not in one.safetensors"));
  EXPECT_THAT(Message(OpenWith("{}")), HasSubstr("weight_map"));
  EXPECT_THAT(Message(OpenWith(R"({"a":1})")), HasSubstr("weight_map"));
  for (std::string_view file :
       {"../one.safetensors", "/etc/passwd", "x/one.safetensors", "", "..", "a\\\\b"}) {
    const absl::Status status = OpenWith(absl::StrCat(R"({"a":")", std::string(file), "\"}"));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(Message(status), HasSubstr("not the name of a file beside the index"));
  }
}

TEST_F(Shards, TellsAllThatDoesNotFit) {
  Weights weights;
  (void)OpenWith(R"({"a":"none.safetensors","aa":"none.safetensors","b":"two.safetensors",)"
                 R"("c":"two.safetensors","d":"../x"})");
  EXPECT_THAT(Problems(Weights::Open(folder_.path(), weights)),
              ElementsAre(HasSubstr("tensor 'd': '../x' is not the name of a file"),
                          HasSubstr("none.safetensors: No such file"),
                          HasSubstr("tensor 'c': is not in two.safetensors")));
  EXPECT_TRUE(weights.GetTensor("b", {1}).ok());
  for (const char* lost : {"a", "aa"}) {
    EXPECT_THAT(Message(weights.GetTensor(lost, {1}).status()),
                HasSubstr("none.safetensors: No such"));
  }
  EXPECT_THAT(Message(weights.GetTensor("e", {1}).status()),
              HasSubstr("model.safetensors.index.json: tensor 'e' is missing"));
}

TEST_F(Shards, NamesTheMissingFileWithoutAnIndex) {
  const absl::Status status = OpenWeights(folder_.path()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Message(status), HasSubstr("model.safetensors"));
}

}  // namespace
}  // namespace ovq::model::test
