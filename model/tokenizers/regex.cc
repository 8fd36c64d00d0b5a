#include "model/tokenizers/regex.h"

#include <dlfcn.h>
#include <oniguruma.h>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "model/tokenizers/chars.h"

namespace ovq::model {
namespace {

// Backtracking steps of one search. With `\s*[\r\n]+` a run of n spaces takes n of them; patterns
// that take n^2 fail here.
constexpr unsigned long kMostRetries = 200'000'000;

const OnigUChar* Begin(std::string_view text) {
  return reinterpret_cast<const OnigUChar*>(text.data());
}
const OnigUChar* End(std::string_view text) { return Begin(text) + text.size(); }

// Debian's library also defines regcomp, regexec and re_search. Linked into a program they would
// replace the C library's for everybody in it; so it is loaded with dlopen, and only what is used
// here is looked up.
constexpr char kLibrary[] = "libonig.so.5";

struct Onig {
  decltype(&onig_initialize) initialize;
  decltype(&onig_set_retry_limit_in_match) set_retry_limit_in_match;
  decltype(&onig_set_retry_limit_in_search) set_retry_limit_in_search;
  decltype(&onig_new) make;
  decltype(&onig_free) free;
  decltype(&onig_search) search;
  decltype(&onig_region_new) region_new;
  decltype(&onig_region_free) region_free;
  decltype(&onig_error_code_to_str) error_code_to_str;
  OnigEncoding utf8;
  OnigSyntaxType* ruby;
  std::string missing;  // why the library cannot be used; "" if it can
};

template <class Pointer>
void Load(void* library, const char* name, Pointer& pointer, std::string& missing) {
  pointer = reinterpret_cast<Pointer>(dlsym(library, name));
  if (pointer == nullptr) missing = absl::StrCat(kLibrary, " has no ", name);
}

Onig* LoadOnig() {
  auto* const onig = new Onig{};
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    onig->missing = dlerror();
    return onig;
  }
  const auto load = [&](const char* name, auto& pointer) {
    Load(library, name, pointer, onig->missing);
  };
  load("onig_initialize", onig->initialize);
  load("onig_set_retry_limit_in_match", onig->set_retry_limit_in_match);
  load("onig_set_retry_limit_in_search", onig->set_retry_limit_in_search);
  load("onig_new", onig->make);
  load("onig_free", onig->free);
  load("onig_search", onig->search);
  load("onig_region_new", onig->region_new);
  load("onig_region_free", onig->region_free);
  load("onig_error_code_to_str", onig->error_code_to_str);
  load("OnigEncodingUTF8", onig->utf8);
  load("OnigSyntaxRuby", onig->ruby);
  if (!onig->missing.empty()) return onig;
  onig->initialize(&onig->utf8, 1);
  onig->set_retry_limit_in_match(kMostRetries);
  onig->set_retry_limit_in_search(kMostRetries);
  return onig;
}

// Loads the library, for good.
const Onig& TheOnig() {
  static const Onig* const onig = LoadOnig();
  return *onig;
}

std::string RegexErrorText(int code, OnigErrorInfo* info) {
  OnigUChar text[ONIG_MAX_ERROR_MESSAGE_LEN];
  const int size = TheOnig().error_code_to_str(text, code, info);
  return std::string(reinterpret_cast<const char*>(text), static_cast<size_t>(size));
}

struct RegionDeleter {
  void operator()(OnigRegion* region) const { TheOnig().region_free(region, 1); }
};

}  // namespace

absl::StatusOr<Regex> Regex::Compile(const std::string& pattern) {
  const Onig& onig = TheOnig();
  if (!onig.missing.empty()) return absl::FailedPreconditionError(onig.missing);
  regex_t* regex = nullptr;
  OnigErrorInfo info{};
  const int code = onig.make(&regex, Begin(pattern), End(pattern), ONIG_OPTION_NONE, onig.utf8,
                             onig.ruby, &info);
  if (code == ONIG_NORMAL) return Regex(std::shared_ptr<regex_t>(regex, onig.free));
  return absl::InvalidArgumentError(
      absl::StrCat("regex ", Quoted(pattern), " does not compile: ", RegexErrorText(code, &info)));
}

absl::Status Regex::FindAll(std::string_view text, std::vector<TextSpan>& matches) const {
  const std::unique_ptr<OnigRegion, RegionDeleter> region(TheOnig().region_new());
  size_t from = 0;
  const size_t first = matches.size();
  while (from <= text.size()) {
    const int at = TheOnig().search(regex_.get(), Begin(text), End(text), Begin(text) + from,
                                    End(text), region.get(), ONIG_OPTION_NONE);
    if (at == ONIG_MISMATCH) return absl::OkStatus();
    if (at < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the regular expression gave up on this text: ", RegexErrorText(at, nullptr)));
    }
    const TextSpan match = {static_cast<size_t>(region->beg[0]),
                            static_cast<size_t>(region->end[0])};
    const bool again =
        match.begin == match.end && matches.size() > first && matches.back().end == match.end;
    from = match.end;
    if (!again) {
      matches.push_back(match);
    } else if (from == text.size()) {
      return absl::OkStatus();
    } else {
      NextChar(text, from);
    }
  }
  return absl::OkStatus();
}

}  // namespace ovq::model
