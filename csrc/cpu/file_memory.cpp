#include "file_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>

namespace quire {

namespace {

int64_t page_bytes() { return sysconf(_SC_PAGESIZE); }

size_t size_of(int64_t bytes) { return static_cast<size_t>(bytes); }

// Linux's `pm_scan_arg`, since 6.7; older headers lack it.
struct PageScan {
  uint64_t size, flags, start, end, walk_end, found, found_length, most_pages;
  uint64_t inverted, all_of, any_of, returned;
};
struct PageRange {
  uint64_t start, end, categories;
};
constexpr uint64_t kIsHuge = 1 << 6;

// Whether huge pages are mapped at all these addresses.
bool is_huge(int pages, const uint8_t* begin, const uint8_t* end) {
#if defined(_IOWR)
  PageRange range = {};
  PageScan scan = {};
  scan.size = sizeof scan;
  scan.start = reinterpret_cast<uint64_t>(begin);
  scan.end = reinterpret_cast<uint64_t>(end);
  scan.found = reinterpret_cast<uint64_t>(&range);
  scan.found_length = 1;
  scan.all_of = scan.returned = kIsHuge;
  return pages >= 0 && ioctl(pages, _IOWR('f', 16, PageScan), &scan) == 1 &&
         range.start == scan.start && range.end == scan.end;
#else
  return false;
#endif
}

}  // namespace

FileMemory::FileMemory(int fd, int64_t offset, int64_t bytes)
    : begin_(offset / page_bytes() * page_bytes()), bytes_(offset + bytes - begin_) {
  const int64_t inside = begin_ % kWindow;
  reserved_ = inside + bytes_ + kWindow;
  void* const area = mmap(nullptr, size_of(reserved_), PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (area == MAP_FAILED) throw std::system_error(errno, std::generic_category());
  area_ = static_cast<uint8_t*>(area);
  const int64_t behind = reinterpret_cast<int64_t>(area_) % kWindow;
  data_ = area_ + (kWindow - behind) % kWindow + inside;
  if (mmap(data_, size_of(bytes_), PROT_READ, MAP_SHARED | MAP_FIXED, fd,
           static_cast<off_t>(begin_)) == MAP_FAILED) {
    const int error = errno;
    munmap(area_, size_of(reserved_));
    throw std::system_error(error, std::generic_category());
  }
  pages_ = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
}

FileMemory::~FileMemory() {
  munmap(area_, size_of(reserved_));
  if (pages_ >= 0) close(pages_);
}

bool FileMemory::populate(uint8_t* data, int64_t size) {
#if defined(MADV_HUGEPAGE)
  madvise(data, size_of(size), MADV_HUGEPAGE);  // what is read from the disk comes on huge pages, too
#endif
#if defined(MADV_POPULATE_READ)
  madvise(data, size_of(size), MADV_POPULATE_READ);
#endif
  return is_huge(pages_, data, data + size);
}

// Has the system read the window anew: it may have lacked huge pages before.
bool FileMemory::populate_again(int fd, int64_t from, uint8_t* data, int64_t size) {
  if (size != kWindow || !rereads_.load(std::memory_order_relaxed)) return false;
  madvise(data, size_of(size), MADV_DONTNEED);
  posix_fadvise(fd, static_cast<off_t>(from), static_cast<off_t>(size), POSIX_FADV_DONTNEED);
  const bool huge = populate(data, size);
  if (!huge) rereads_.store(false, std::memory_order_relaxed);  // other windows would fare no better
  return huge;
}

int FileMemory::settle(int fd, int64_t window) {
  const int64_t from = std::max(window, begin_), to = std::min(window + kWindow, begin_ + bytes_);
  uint8_t* const data = at(from);
  const size_t size = size_of(to - from);
  if (populate(data, to - from) || populate_again(fd, from, data, to - from)) return 0;
  if (mmap(data, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
      MAP_FAILED) {
    return errno;
  }
#if defined(MADV_HUGEPAGE)
  madvise(data, size, MADV_HUGEPAGE);
#endif
  for (int64_t done = from; done < to;) {
    const ssize_t got = pread(fd, at(done), size_of(to - done), static_cast<off_t>(done));
    if (got == 0) return EIO;
    if (got < 0 && errno != EINTR) return errno;
    if (got > 0) done += got;
  }
  return 0;
}

}  // namespace quire
