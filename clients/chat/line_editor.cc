#include "clients/chat/line_editor.h"

#include <histedit.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cwchar>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

namespace ovq::clients {
namespace {

constexpr int kHistoryLines = 1000;
// Terminals with xterm's "bracketed paste" mode put these around pasted text.
constexpr std::string_view kPastesOn = "\033[?2004h", kPastesOff = "\033[?2004l";
constexpr std::wstring_view kPasteEnd = L"\033[201~";
// libedit treats text between two of these characters as codes that don't move the cursor.
constexpr char kCodes = '\1';

// Converts line ends to newlines and drops control characters.
std::wstring CleanPaste(std::wstring_view text) {
  std::wstring clean;
  for (size_t i = 0; i < text.size(); ++i) {
    const wchar_t c = text[i];
    if (c == L'\r') {
      if (i + 1 == text.size() || text[i + 1] != L'\n') clean += L'\n';
    } else if ((c >= 0x20 && c != 0x7F) || c == L'\n' || c == L'\t') {
      clean += c;
    }
  }
  return clean;
}

// Returns the number of terminal rows that the text takes above the row where it ends, after a
// prompt of `prompt_width` columns.
int RowsBefore(int prompt_width, std::wstring_view text, int columns) {
  int rows = prompt_width / columns, column = prompt_width % columns;
  for (const wchar_t c : text) {
    int width = c == L'\t' ? 8 - column % 8 : std::max(wcwidth(c), 0);
    if (c == L'\n' || column + width > columns) {
      ++rows;
      column = 0;
      if (c == L'\n') width = 0;
    }
    column += width;
  }
  return rows + column / columns;
}

}  // namespace

LineEditor::LineEditor(std::string history_file, bool colored)
    : history_file_(std::move(history_file)),
      colored_(colored),
      wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  // Text is UTF-8 here, whatever locale the environment sets.
  std::setlocale(LC_CTYPE, "C.UTF-8");
  tcgetattr(STDIN_FILENO, &before_);
  edit_ = el_init("ovq-chat", stdin, stderr, stderr);
  history_ = history_init();
  HistEvent event;
  ::history(history_, &event, H_SETSIZE, kHistoryLines);
  ::history(history_, &event, H_SETUNIQUE, 1);
  if (!history_file_.empty()) ::history(history_, &event, H_LOAD, history_file_.c_str());
  el_set(edit_, EL_CLIENTDATA, this);
  el_set(edit_, EL_GETCFN, &ReadChar);
  el_set(edit_, EL_PROMPT_ESC, &Prompt, kCodes);
  el_set(edit_, EL_HIST, &::history, history_);
  el_set(edit_, EL_EDITOR, "emacs");
  el_source(edit_, nullptr);  // reads ~/.editrc if it exists
  BindKeys();
  HideTyping();
}

LineEditor::~LineEditor() {
  el_end(edit_);
  history_end(history_);
  close(wake_fd_);
  Restore();
}

void LineEditor::BindKeys() {
  // While a line is typed, Ctrl-C and Ctrl-Z are keys and raise no signals.
  el_set(edit_, EL_SETTY, "-d", "-isig", nullptr);
  const auto bind = [this](const char* name, const char* help,
                           unsigned char (*function)(editline*, int),
                           std::initializer_list<const char*> keys) {
    el_set(edit_, EL_ADDFN, name, help, function);
    for (const char* key : keys) el_set(edit_, EL_BIND, key, name, nullptr);
  };
  bind("ovq-interrupt", "Drop the line", &OnInterrupt, {"^C"});
  bind("ovq-newline", "Begin another line of this turn", &OnNewline, {"\\e^M", "\\e^J"});
  bind("ovq-paste", "Insert what is pasted", &OnPaste, {"\\e[200~"});
  bind("ovq-suspend", "Stop the program", &OnSuspend, {"^Z"});
  for (const auto& [key, command] :
       {std::pair("^R", "em-inc-search-prev"), std::pair("^I", "ed-insert"),
        std::pair("\\e[3~", "ed-delete-next-char"), std::pair("\\e[H", "ed-move-to-beg"),
        std::pair("\\e[1~", "ed-move-to-beg"), std::pair("\\e[F", "ed-move-to-end"),
        std::pair("\\e[4~", "ed-move-to-end"), std::pair("\\e[1;5C", "em-next-word"),
        std::pair("\\e[1;5D", "ed-prev-word")}) {
    el_set(edit_, EL_BIND, key, command, nullptr);
  }
}

std::optional<std::string> LineEditor::Next(const std::string& prompt) {
  const std::string codes(1, kCodes);
  prompt_width_ = static_cast<int>(prompt.size());  // the prompt is ASCII
  prompt_ = colored_ ? codes + "\033[1m" + codes + prompt + codes + "\033[0m" + codes : prompt;
  while (true) {
    interrupt_ = false;
    PrintFlushed(stderr, kPastesOn);
    int size = 0;
    const char* const text = el_gets(edit_, &size);
    reading_ = false;
    PrintFlushed(stderr, kPastesOff);
    HideTyping();
    if (text == nullptr || size <= 0) {
      PrintFlushed(stderr, "\n");
      return std::nullopt;
    }
    std::string line(text, static_cast<size_t>(size));
    if (line.ends_with('\n')) line.pop_back();
    if (!interrupt_) {
      interrupts_ = 0;
      Remember(line);
      return line;
    }
    interrupts_ = line.empty() ? interrupts_ + 1 : 0;
    if (interrupts_ > 1) return std::nullopt;
    if (line.empty())
      PrintFlushed(stderr, "[Ctrl-C once more, Ctrl-D or /quit ends the conversation]\n");
  }
}

void LineEditor::Remember(const std::string& line) {
  if (line.empty()) return;
  HistEvent event;
  ::history(history_, &event, H_ENTER, line.c_str());
  if (history_file_.empty()) return;
  std::error_code error;  // if the file cannot be written, the history lasts for this run only
  std::filesystem::create_directories(std::filesystem::path(history_file_).parent_path(), error);
  ::history(history_, &event, H_SAVE, history_file_.c_str());
}

void LineEditor::HideTyping() {
  termios quiet = before_;
  quiet.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  quiet.c_lflag |= NOFLSH;  // Ctrl-C does not discard typed input
  tcsetattr(STDIN_FILENO, TCSADRAIN, &quiet);
}

void LineEditor::Restore() {
  PrintFlushed(stderr, kPastesOff);
  tcsetattr(STDIN_FILENO, TCSADRAIN, &before_);
}

void LineEditor::Resized() {
  resized_ = true;
  eventfd_write(wake_fd_, 1);
}

LineEditor& LineEditor::FromEditline(editline* edit) {
  void* self = nullptr;
  el_get(edit, EL_CLIENTDATA, &self);
  return *static_cast<LineEditor*>(self);
}

char* LineEditor::Prompt(editline* edit) { return FromEditline(edit).prompt_.data(); }

unsigned char LineEditor::OnInterrupt(editline* edit, int) {
  FromEditline(edit).interrupt_ = true;
  const LineInfo* const line = el_line(edit);
  el_cursor(edit, static_cast<int>(line->lastchar - line->cursor));
  el_push(edit, "\n");
  return CC_REFRESH;
}

unsigned char LineEditor::OnNewline(editline* edit, int) {
  return el_winsertstr(edit, L"\n") == 0 ? CC_REFRESH : CC_ERROR;
}

unsigned char LineEditor::OnPaste(editline* edit, int) {
  std::wstring text;
  while (!std::wstring_view(text).ends_with(kPasteEnd)) {
    wchar_t c = 0;
    if (el_wgetc(edit, &c) != 1) return CC_EOF;
    text += c;
  }
  text.resize(text.size() - kPasteEnd.size());
  text = CleanPaste(text);
  return text.empty() || el_winsertstr(edit, text.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
}

unsigned char LineEditor::OnSuspend(editline* edit, int) {
  LineEditor& self = FromEditline(edit);
  self.Restore();
  kill(0, SIGTSTP);  // suspends the process as the terminal would; continues here after SIGCONT
  el_set(edit, EL_PREP_TERM, 1);
  PrintFlushed(stderr, kPastesOn);
  return CC_REDISPLAY;
}

int LineEditor::ReadChar(editline* edit, wchar_t* out) {
  LineEditor& self = FromEditline(edit);
  self.reading_ = true;  // the terminal has the editor's mode by now
  while (!self.ConsumeChar(*out)) {
    if (self.resized_.exchange(false)) self.Redraw();
    if (!self.ReadBytes()) return 0;
  }
  return 1;
}

// After a resize the terminal has already reflowed the lines: moves the cursor to the prompt's new
// position and redraws everything.
void LineEditor::Redraw() {
  winsize size = {};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    const LineInfoW* const line = el_wline(edit_);
    const std::wstring_view typed(line->buffer, static_cast<size_t>(line->cursor - line->buffer));
    const int rows = RowsBefore(prompt_width_, typed, size.ws_col);
    PrintFlushed(stderr, rows > 0 ? "\r\033[" + std::to_string(rows) + "A\033[J" : "\r\033[J");
  }
  el_resize(edit_);
  el_set(edit_, EL_REFRESH);
}

bool LineEditor::ConsumeChar(wchar_t& out) {
  while (consumed_ < bytes_.size()) {
    std::mbstate_t state = {};
    const size_t length =
        std::mbrtowc(&out, bytes_.data() + consumed_, bytes_.size() - consumed_, &state);
    if (length == static_cast<size_t>(-2)) return false;
    if (length == 0) {  // a NUL, which no line contains
      ++consumed_;
      continue;
    }
    if (length == static_cast<size_t>(-1)) out = 0xFFFD;
    consumed_ += length == static_cast<size_t>(-1) ? 1 : length;
    return true;
  }
  return false;
}

bool LineEditor::ReadBytes() {
  std::array<pollfd, 2> fds = {pollfd{STDIN_FILENO, POLLIN, 0}, pollfd{wake_fd_, POLLIN, 0}};
  while (poll(fds.data(), fds.size(), -1) < 0 && errno == EINTR) {
  }
  if (fds[1].revents != 0) {
    eventfd_t ignored;
    eventfd_read(wake_fd_, &ignored);
    return true;
  }
  std::array<char, 1 << 16> bytes;
  const ssize_t n = read(STDIN_FILENO, bytes.data(), bytes.size());
  if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN)) return false;
  bytes_.erase(0, consumed_);
  consumed_ = 0;
  if (n > 0) bytes_.append(bytes.data(), static_cast<size_t>(n));
  return true;
}

std::string DefaultHistoryFile() {
  const auto folder = [](const char* name, const char* below) -> std::string {
    const char* const value = std::getenv(name);
    if (value == nullptr || *value != '/') return "";  // XDG says that relative paths are ignored
    return std::string(value) + below;
  };
  std::string state = folder("XDG_STATE_HOME", "");
  if (state.empty()) state = folder("HOME", "/.local/state");
  return state.empty() ? "" : state + "/ovq-chat/history";
}

}  // namespace ovq::clients
