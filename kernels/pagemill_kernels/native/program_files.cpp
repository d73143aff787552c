// What the process maps of its programs' files: libraries that are loaded, relocated and then hardly used stay resident until somebody asks otherwise.
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include "native.h"

namespace {

// Text that is relocated where it lies holds more than the file does.
bool is_relocated(const dl_phdr_info& object) {
  for (int i = 0; i < object.dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = object.dlpi_phdr[i];
    if (header.p_type != PT_DYNAMIC) continue;
    for (auto entry = reinterpret_cast<const ElfW(Dyn)*>(object.dlpi_addr + header.p_vaddr); entry->d_tag != DT_NULL; ++entry) {
      if (entry->d_tag == DT_TEXTREL || (entry->d_tag == DT_FLAGS && (entry->d_un.d_val & DF_TEXTREL) != 0)) return true;
    }
  }
  return false;
}

// Of an object's segments those that nobody may write are their files' own pages: they come in again when they are next read. The linker's lock is
// held meanwhile, so that none is being made.
int let_go(dl_phdr_info* object, std::size_t, void* page_size) {
  if (is_relocated(*object)) return 0;
  ElfW(Addr) page = *static_cast<const long*>(page_size);
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = object->dlpi_phdr[i];
    if (header.p_type != PT_LOAD || (header.p_flags & PF_W) != 0) continue;
    ElfW(Addr) begin = object->dlpi_addr + header.p_vaddr, end = begin + header.p_filesz;
    begin = (begin + page - 1) / page * page;
    end = end / page * page;
    if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  }
  return 0;
}

}  // namespace

extern "C" void pm_let_go_of_files() {
  long page = sysconf(_SC_PAGESIZE);
  dl_iterate_phdr(let_go, &page);
}
