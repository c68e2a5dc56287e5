// The boxes that views are made of, and what they say when they have nothing to show.
import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";

interface PanelProps {
  title: string;
  class?: string;
  aside?: ComponentChildren;
  children: ComponentChildren;
}

export function Panel({ title, class: name = "", aside, children }: PanelProps) {
  return (
    <section class={`panel ${name}`} aria-label={title}>
      <header>
        <h2>{title}</h2>
        {aside}
      </header>
      {children}
    </section>
  );
}

export function Empty({ children }: { children: ComponentChildren }) {
  return <p class="empty">{children}</p>;
}

export function ErrorNote({ children }: { children: ComponentChildren }) {
  return (
    <p class="error" role="alert">
      {children}
    </p>
  );
}

interface DialogProps {
  title: string;
  class?: string;
  /** Absent where the dialog cannot be left. */
  onClose?: () => void;
  children: ComponentChildren;
}

/** The browser's own modal dialog: it keeps the focus inside. */
export function Dialog({ title, class: name = "", onClose, children }: DialogProps) {
  const dialog = useRef<HTMLDialogElement>(null);
  // Not a passive effect: its end has to come before the element is gone, for the focus' sake.
  useLayoutEffect(() => {
    const element = dialog.current;
    const before = document.activeElement as HTMLElement | null;
    element?.showModal();
    return () => {
      element?.close();
      before?.focus();
    };
  }, []);
  return (
    <dialog
      ref={dialog}
      class={name}
      aria-label={title}
      onCancel={(event) => {
        event.preventDefault();
        onClose?.();
      }}
      onClick={(event) => event.target === dialog.current && onClose?.()}
    >
      <div class="sheet">
        <header>
          <h2>{title}</h2>
          {onClose && (
            <button type="button" class="quiet" onClick={onClose} aria-label="Close">
              ✕
            </button>
          )}
        </header>
        {children}
      </div>
    </dialog>
  );
}
