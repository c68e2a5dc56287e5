"""Operations: one function an op; providers reference (plain torch) and cpu (native)."""
