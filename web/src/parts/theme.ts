import { useEffect, useState } from "preact/hooks";

const dark = matchMedia("(prefers-color-scheme: dark)");

/** What the system asks for now; canvases are drawn anew when it changes. */
export function useTheme(): "dark" | "light" {
  const [isDark, setDark] = useState(dark.matches);
  useEffect(() => {
    const changed = () => setDark(dark.matches);
    dark.addEventListener("change", changed);
    return () => dark.removeEventListener("change", changed);
  }, []);
  return isDark ? "dark" : "light";
}
