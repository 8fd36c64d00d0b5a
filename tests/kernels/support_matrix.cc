// Prints which type each layer type keeps its state in, for every --state-dtype and device: a table
// of Markdown. Each cell is asked of the mixer itself, with all cases of the contract test. Given a
// file, fails unless the file has this table.
//
//   support_matrix [docs/model-format.md]
#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/mixers/mixer.h"
#include "tests/kernels/mixers/mixer_test_util.h"

namespace ovq::kernels::test {
namespace {

constexpr std::array kDevices = {Device::kCpu, Device::kCuda};
constexpr std::array kTypes = {std::pair(DType::kF32, "f32"), std::pair(DType::kBF16, "bf16"),
                               std::pair(DType::kI8, "i8")};

const char* FlagName(DType dtype) {
  const auto found = std::ranges::find(kTypes, dtype, [](const auto& type) { return type.first; });
  return found == kTypes.end() ? DTypeName(dtype) : found->second;
}

// The wanted type where a field of the state has it, else the type of the most bytes.
DType StoredType(const MixerState& state, DType wanted) {
  std::map<DType, size_t> bytes;
  for (const StateFields* fields : {&state.fixed, &state.block}) {
    for (const StateField& field : fields->list()) bytes[field.dtype] += field.bytes();
  }
  if (bytes.contains(wanted)) return wanted;
  return std::ranges::max_element(bytes, {}, [](const auto& type) { return type.second; })->first;
}

// The types that the cases of a mixer are stored in; "refused" where a case is.
std::string Cell(std::string_view layer_type, Device device, DType wanted) {
  std::set<std::string> types;
  for (const MixerCase& c : MixerCases::All()) {
    if (c.type != layer_type) continue;
    const absl::StatusOr<MixerState> state = MakeState(c, wanted, device);
    types.insert(state.ok() ? FlagName(StoredType(*state, wanted)) : "refused");
  }
  return absl::StrJoin(types, ", ");
}

std::string Table() {
  std::string table = "| layer type |", line = "|---|";
  for (Device device : kDevices) {
    for (const auto& [type, name] : kTypes) {
      absl::StrAppend(&table, " `", DeviceName(device), "`, `", name, "` |");
      line += "---|";
    }
  }
  absl::StrAppend(&table, "\n", line, "\n");
  for (const MixerEntry& entry : MixerRegistry()) {
    absl::StrAppend(&table, "| `", std::string(entry.layer_type), "` |");
    for (Device device : kDevices) {
      for (const auto& [type, name] : kTypes) {
        absl::StrAppend(&table, " ", Cell(entry.layer_type, device, type), " |");
      }
    }
    table += "\n";
  }
  return table;
}

int Main(int argc, char** argv) {
  const std::string table = Table();
  std::fputs(table.c_str(), stdout);
  if (argc < 2) return 0;
  std::ifstream file(argv[1]);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (text.find("\n" + table + "\n") != std::string::npos) return 0;
  std::fprintf(stderr, "%s does not have this table\n", argv[1]);
  return 1;
}

}  // namespace
}  // namespace ovq::kernels::test

int main(int argc, char** argv) { return ovq::kernels::test::Main(argc, argv); }
