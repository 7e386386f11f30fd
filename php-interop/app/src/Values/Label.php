<?php

namespace App\Values;

class Label
{
    private $origin = 'origin of the parent';

    private $text = 'text of the parent';

    public function __construct(protected string $language = 'en') {}
}
