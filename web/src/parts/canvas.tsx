// A canvas that is as sharp as the screen, as wide as its box, and drawn anew when told to.
import { useEffect, useRef, useState } from "preact/hooks";
import { useTheme } from "./theme";

interface Props {
  /** CSS pixels, by the width. */
  height: (width: number) => number;
  draw: (context: CanvasRenderingContext2D, width: number, height: number) => void;
  class?: string;
}

export function Canvas({ height, draw, class: name = "" }: Props) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(0);
  const theme = useTheme();

  useEffect(() => {
    const element = canvas.current;
    if (!element) return;
    const resized = new ResizeObserver(() => setWidth(element.clientWidth));
    resized.observe(element);
    return () => resized.disconnect();
  }, []);

  useEffect(() => {
    const element = canvas.current;
    const context = element?.getContext("2d");
    if (!element || !context || !width) return;
    const tall = Math.max(1, height(width));
    const scale = devicePixelRatio;
    element.width = Math.round(width * scale);
    element.height = Math.round(tall * scale);
    element.style.height = `${tall}px`;
    context.scale(scale, scale);
    draw(context, width, tall);
  }, [width, theme, height, draw]);

  return <canvas ref={canvas} class={name} aria-hidden="true" />;
}
