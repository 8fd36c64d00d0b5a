// Where a value of a call's arguments ends, found character by character, in JSON and in Python's
// notation.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "model/answers/marker.h"

namespace ovq::answers {

// Follows the brackets of a value outside its texts. A closing one also closes what opened since
// its own, as models forget some; where its own is not open, it closes the last one.
class Brackets {
 public:
  bool none_open() const { return open_.empty(); }
  // Whether the bracket that this one closes is open.
  bool Has(char closing) const {
    const size_t kind = kClosing.find(closing);
    return kind != kClosing.npos && n_open_[kind] > 0;
  }
  void Open(char opening) {
    const size_t kind = kOpening.find(opening);
    open_ += kClosing[kind];
    ++n_open_[kind];
  }
  void Close(char closing) {
    const bool has_own = Has(closing);
    while (!open_.empty()) {
      const char last = open_.back();
      open_.pop_back();
      --n_open_[kClosing.find(last)];
      if (!has_own || last == closing) return;
    }
  }

 private:
  static constexpr std::string_view kOpening = "([{", kClosing = ")]}";

  std::string open_;  // what closes each, the last opened one at the end
  std::array<size_t, kOpening.size()> n_open_ = {};
};

// Finds the end of a JSON value by brackets and quotes.
class ValueEnd {
 public:
  // Whether the value ends before this character, which is then not part of it.
  bool EndsBefore(char c) const {
    return brackets_.none_open() && !quote_ && begun_ &&
           (closed_ || c == ',' || c == '}' || c == ']' || c == ')' || IsSpace(c));
  }
  void Add(char c) {
    begun_ = true;
    if (quote_ != 0) {
      if (escaped_) {
        escaped_ = false;
      } else if (c == '\\') {
        escaped_ = true;
      } else if (c == quote_) {
        quote_ = 0;
        closed_ = brackets_.none_open();
      }
    } else if (c == '"') {
      quote_ = c;
    } else if (c == '{' || c == '[' || c == '(') {
      brackets_.Open(c);
    } else if (c == '}' || c == ']' || c == ')') {
      brackets_.Close(c);
      closed_ = brackets_.none_open();
    }
  }
  bool begun() const { return begun_; }
  bool closed() const { return closed_; }
  bool in_string() const { return quote_ != 0; }

 private:
  Brackets brackets_;
  char quote_ = 0;  // the quotation mark of the string that the value is in
  bool escaped_ = false, begun_ = false, closed_ = false;
};

// Finds the end of an argument in Python's notation: a comma or a bracket that is no part of it.
// Texts may stand one behind another, and between three quotation marks. A mark within a word, as
// in it's, begins none. A parenthesis that closes none of the value's is the call's.
class PythonValueEnd {
 public:
  bool EndsBefore(char c) const {
    if (quote_ != 0) return false;
    if (c == ')' && !brackets_.Has(c)) return true;
    return brackets_.none_open() && (c == ',' || c == '}' || c == ']');
  }
  void Add(char c) {
    const char empty = std::exchange(empty_, 0);
    const std::string word = std::exchange(word_, "");
    if (quote_ != 0) {
      AddInText(c);
    } else if (InWord(c)) {
      word_ = word.size() > kMostPrefix ? word : word + c;
    } else if ((c == '"' || c == '\'') && IsPrefix(word)) {
      quote_ = c;
      n_quotes_ = c == empty ? 3 : 1;
      n_closing_ = 0;
      is_empty_ = n_quotes_ == 1;
    } else if (c == '{' || c == '[' || c == '(') {
      brackets_.Open(c);
    } else if (c == '}' || c == ']' || c == ')') {
      brackets_.Close(c);
    }
  }

 private:
  static constexpr size_t kMostPrefix = 2;  // letters before a text, such as those of rb'...'

  static bool InWord(char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || (c & 0x80) != 0;
  }
  static bool IsPrefix(std::string_view word) {
    return word.size() <= kMostPrefix &&
           word.find_first_not_of("rRuUbBfF") == std::string_view::npos;
  }

  void AddInText(char c) {
    const bool is_first = std::exchange(is_empty_, false);
    n_closing_ = c == quote_ && !escaped_ ? n_closing_ + 1 : 0;
    escaped_ = c == '\\' && !escaped_;
    if (n_closing_ < n_quotes_) return;
    empty_ = is_first ? c : 0;
    quote_ = 0;
  }

  Brackets brackets_;
  char quote_ = 0;                    // the quotation mark of the text that the value is in
  int n_quotes_ = 1, n_closing_ = 0;  // marks that end the text, and those of them that were read
  char empty_ = 0;                    // the mark of an empty text that was read just now
  std::string word_;                  // that was read last, or its beginning if it is long
  bool is_empty_ = false, escaped_ = false;
};

}  // namespace ovq::answers
