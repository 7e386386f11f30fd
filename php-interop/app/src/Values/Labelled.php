<?php

namespace App\Values;

/** Its parent has private properties, one of the same name. */
final class Labelled extends Label
{
    private $text;

    public function __construct(string $text, public readonly Point $point, public array $more = [])
    {
        parent::__construct('pl');
        $this->text = $text;
    }
}
