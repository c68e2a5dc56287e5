"""Operations: one function an op; providers reference (plain torch), cpu (native), triton."""
