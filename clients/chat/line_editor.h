// Reads turns that a person types on a terminal: editable lines, a history, and pastes that arrive
// whole. Editing, keys and ~/.editrc are libedit's.
#pragma once

#include <termios.h>

#include <atomic>
#include <optional>
#include <string>

#include "clients/chat/terminal.h"

struct editline;
struct history;

namespace ovq::clients {

// Owns stdin and stderr; a process has at most one. Between calls of Next the terminal echoes
// nothing; the next call reads what was typed meanwhile, and Ctrl-C raises SIGINT.
class LineEditor final : public Input {
 public:
  // Appends typed turns to `history_file`, readable by its owner only, for later runs; "" keeps
  // none. `colored` shows prompts in bold.
  LineEditor(std::string history_file, bool colored);
  ~LineEditor() override;
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  // Returns the next turn. It has several lines if a block was pasted or Alt-Enter typed. Ctrl-C
  // drops the typed text; two in a row without text end the input. The prompt is ASCII.
  std::optional<std::string> Next(const std::string& prompt) override;
  bool reading() const override { return reading_; }
  bool interrupted() const override { return interrupts_ > 1; }

  // Resized draws the typed text for the terminal's new size; Restore gives the terminal its
  // original settings. Callable on any thread.
  void Resized();
  void Restore();

 private:
  static LineEditor& FromEditline(editline* edit);
  static char* Prompt(editline* edit);
  // Handlers of the bound keys.
  static unsigned char OnInterrupt(editline* edit, int key);
  static unsigned char OnNewline(editline* edit, int key);
  static unsigned char OnPaste(editline* edit, int key);
  static unsigned char OnSuspend(editline* edit, int key);
  static int ReadChar(editline* edit, wchar_t* out);

  void BindKeys();
  void Redraw();
  // Decodes the next character of the bytes read; returns false if more bytes are needed.
  bool ConsumeChar(wchar_t& out);
  // Returns false at the end of input.
  bool ReadBytes();
  void Remember(const std::string& line);
  void HideTyping();

  const std::string history_file_;
  const bool colored_;
  termios before_ = {};
  int wake_fd_;
  std::atomic<bool> resized_ = false, reading_ = false;
  editline* edit_;
  struct history* history_;
  std::string prompt_;
  int prompt_width_ = 0;
  std::string bytes_;  // bytes read; those from consumed_ on are not yet decoded
  size_t consumed_ = 0;
  bool interrupt_ = false;  // Ctrl-C ended the current line
  int interrupts_ = 0;      // consecutive Ctrl-C without text
};

// Returns the path of the history file: $XDG_STATE_HOME/ovq-chat/history, by default below
// ~/.local/state; "" if neither exists.
std::string DefaultHistoryFile();

}  // namespace ovq::clients
